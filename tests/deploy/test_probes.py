# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Probes of kubelet: each has the time that an answer takes on a busy node."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.deploy.chart import CASES, Case, rendered
from tools.chart.__main__ import KUSTOMIZE_BASE

# An answer took 1.3 s under 930 connections a second.
LEAST_S = 5


def probes(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every probe in a manifest."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key.endswith("Probe"):
                yield each
            yield from probes(each)
    elif isinstance(value, list):
        for each in value:
            yield from probes(each)


@pytest.mark.parametrize("case", CASES[::2], ids=lambda case: case.name)
def test_no_probe_has_the_default_time_out(case: Case) -> None:
    found = list(probes(list(rendered(case))))
    assert len(found) == 3
    assert all(each.get("timeoutSeconds", 1) >= LEAST_S for each in found)


def test_nor_has_one_of_the_base() -> None:
    found = list(probes(list(yaml.safe_load_all(KUSTOMIZE_BASE.read_text()))))
    assert len(found) == 3
    assert all(each.get("timeoutSeconds", 1) >= LEAST_S for each in found)
