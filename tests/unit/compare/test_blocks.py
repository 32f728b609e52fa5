# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""CPU accounts of a block compared with the wall clock."""

import pytest

from tests.compare.blocks import unaccounted_s


@pytest.mark.parametrize(
    ("tasks", "idle", "stolen", "interrupts", "expected"),
    [
        pytest.param(15.0, 4.0, 1.0, 0.0, 0.0, id="all known"),
        pytest.param(10.0, 4.0, 1.0, 0.0, 5.0, id="missing"),
        pytest.param(12.0, 10.0, 1.0, 2.0, -3.0, id="counted twice"),
        pytest.param(10.0, 9.0, 0.0, 3.0, 0.0, id="interrupts of idle CPUs, and of tasks"),
        pytest.param(10.0, 5.0, 0.0, 2.0, 3.0, id="more than interrupts"),
    ],
)
def test_interrupts_count_as_far_as_something_is_missing(
    tasks: float, idle: float, stolen: float, interrupts: float, expected: float
) -> None:
    used = {"tasks": tasks, "idle": idle, "stolen": stolen, "interrupts": interrupts}
    assert unaccounted_s(used, 20.0) == expected
