# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Probes of the tests in the guest; each program is compiled once, which takes fifteen seconds."""

from collections.abc import Iterator

import pytest

from controller.probes.sched import SchedProbe
from tests.kernel.test_counters import counting


@pytest.fixture(scope="module")
def counting_probe() -> Iterator[SchedProbe]:
    """The sched probe with counters."""
    loaded = counting()
    assert loaded.untyped == ""
    yield loaded
    loaded.close()
