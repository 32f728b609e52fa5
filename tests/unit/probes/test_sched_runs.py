# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Unfinished runs, also while a CPU switches between two reads of its words."""

from typing import cast

import numpy as np
from numpy.typing import NDArray
import pytest

from controller.probes.sched_runs import unfinished_runs
from controller.probes.slots import SLOT_IDLE

SERVICE, OTHER = 7, 8
# since, slot, sync_clock, sync_mono: the rq clock is 100 behind CLOCK_MONOTONIC.
OLD = (1_000, SLOT_IDLE, 900, 1_000)
NEW = (9_000, SERVICE, 9_000, 9_100)
NOW_NS = 9_050


class Switching:
    """The words of one CPU, which switches to the service after some reads of a column."""

    def __init__(self, after: int) -> None:
        self._left = after

    def __getitem__(self, key: tuple[slice, int]) -> NDArray[np.int64]:
        words = np.array([NEW if self._left <= 0 else OLD])
        self._left -= 1
        column: NDArray[np.int64] = words[key]
        return column


def test_a_run_lasts_until_now_by_the_newest_pair_of_clocks() -> None:
    words = np.array([(1_000, SERVICE, 900, 1_000), (5_000, OTHER, 4_000, 4_100), (0, 0, 0, 0)])
    assert unfinished_runs(words, 6_100) == (4_100, [(SERVICE, 5_000), (OTHER, 1_000)])


@pytest.mark.parametrize("after", range(5))
def test_a_slot_is_not_charged_with_the_time_before_it_ran(after: int) -> None:
    words = cast("NDArray[np.int64]", Switching(after))
    _, runs = unfinished_runs(words, NOW_NS)
    ((slot, length_ns),) = runs
    assert length_ns == 0 if slot == SERVICE else length_ns <= NOW_NS - OLD[0]
