# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Scaling of counters of multiplexed events, by the times enabled and running.

The kernel multiplexes only hardware events, so the times are passed to the program's code directly.
"""

from pathlib import Path

import numpy as np
import pytest

from controller.probes.bpf.loader import ProgramSpec
from tests.kernel.array_program import outputs_of

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]

SOURCE = Path(__file__).with_name("scale_check.bpf.c")
MS, DAY = 10**6, 86_400 * 10**9

# (enabled, running) at the first and at the second reading; counted; expected; expected dead flag.
CASES = [
    ((MS, MS), (101 * MS, 101 * MS), 7_000, 7_000, 0),
    ((MS, MS), (101 * MS, 51 * MS), 7_000, 14_000, 0),
    # Only the times since the last reading matter.
    ((900 * MS, 90 * MS), (1000 * MS, 190 * MS), 7_000, 7_000, 0),
    ((900 * MS, 900 * MS), (1000 * MS, 925 * MS), 7_000, 28_000, 0),
    ((MS, MS), (1 + DAY, 1 + DAY // 3), 10**12, 3 * 10**12, 0),
    # Not running in that time: no scale, and nothing was counted.
    ((MS, MS), (101 * MS, MS), 0, 0, 0),
    # The first reading.
    ((0, 0), (100 * MS, 50 * MS), 7_000, 7_000, 0),
    # The event was opened again after its CPU was off line.
    ((900 * MS, 450 * MS), (5 * MS, 5 * MS), 7_000, 7_000, 0),
    # The time does not advance: the CPU was off line, and is on line again without the event.
    ((900 * MS, 900 * MS), (900 * MS, 900 * MS), 0, 0, 1),
]


def test_gains_are_scaled_by_enabled_over_running() -> None:
    defines = {"VALUES": len(CASES), "COUNTERS": 1, "NCPU": 1, "MAX_SLOTS": 1}
    spec = ProgramSpec(source=str(SOURCE), defines=defines, maps=("input", "output"))
    inputs = [
        (first[0], second[0], first[1], second[1], gain) for first, second, gain, _, _ in CASES
    ]
    gains, dead = outputs_of(spec, np.array(inputs, np.uint64), 2).T.tolist()
    assert dead == [case[4] for case in CASES]
    assert gains == [pytest.approx(case[3], rel=0.001) for case in CASES]
