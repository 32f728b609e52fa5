# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Texts of the log."""

import pytest

from controller.core.explain import describe_pause
from controller.core.model import Pause


@pytest.mark.parametrize(
    ("pause", "text"),
    [
        (Pause(services=("web",)), "service web: its knobs are restored"),
        (Pause(workloads=("a", "b")), "workloads a, b: their knobs are restored"),
        (
            Pause(services=("web",), workloads=("a",)),
            "service web and workload a: their knobs are restored",
        ),
    ],
)
def test_a_pause_is_described_in_the_right_number(pause: Pause, text: str) -> None:
    assert describe_pause(pause) == text
