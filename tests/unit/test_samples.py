# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Samples from a table of counters: right, and the same objects where nothing moved."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from controller.model import CgroupId, WorkloadSample
from controller.probes.samples import SampleRows

FIELDS = ("oncpu_ns", "waits")
ONE, TWO, THREE = (CgroupId("cpu", number) for number in (1, 2, 3))
PAIR = (ONE, TWO)


def table(*rows: Sequence[int]) -> NDArray[np.int64]:
    return np.array(rows, np.int64).reshape(-1, len(rows[0]) if rows else len(FIELDS))


def sample(cgroup: CgroupId, oncpu_ns: int, waits: int) -> WorkloadSample:
    return WorkloadSample(cgroup, oncpu_ns=oncpu_ns, waits=waits)


def test_who_moved_has_a_new_sample_and_the_others_the_old() -> None:
    rows = SampleRows()
    one, two = rows.update(PAIR, FIELDS, table((1, 2), (3, 4)))
    assert (one, two) == (sample(ONE, 1, 2), sample(TWO, 3, 4))
    rows.update(PAIR, FIELDS, table((1, 2), (3, 4)))
    after = rows.update(PAIR, FIELDS, table((1, 2), (3, 5)))
    assert after[0] == one
    assert after[1] == sample(TWO, 3, 5)
    again = rows.update(PAIR, FIELDS, table((1, 2), (3, 5)))[0]
    assert again is rows.update(PAIR, FIELDS, table((1, 2), (3, 6)))[0]


def test_nobody_is_no_trouble() -> None:
    rows = SampleRows()
    assert rows.update((), FIELDS, table()) == []
    assert rows.update(PAIR, FIELDS, table((1, 2), (3, 4)))[0] == sample(ONE, 1, 2)
    assert rows.update((), FIELDS, table()) == []


def test_who_comes_and_goes_moves_nobody_elses_counters() -> None:
    rows = SampleRows()
    for _ in range(2):
        two = rows.update(PAIR, FIELDS, table((1, 2), (3, 4)))[1]
    after = rows.update((TWO, THREE), FIELDS, table((3, 4), (0, 0)))
    assert after[0] is two
    assert after[1] == sample(THREE, 0, 0)
    assert rows.update((THREE, ONE), FIELDS, table((0, 0), (5, 6)))[1] == sample(ONE, 5, 6)


def test_a_field_that_goes_is_none_and_comes_back() -> None:
    rows = SampleRows()
    rows.update(PAIR, FIELDS, table((1, 2), (3, 4)))
    assert rows.update(PAIR, FIELDS[:1], table((1,), (3,)))[0] == WorkloadSample(ONE, oncpu_ns=1)
    assert rows.update(PAIR, FIELDS, table((1, 2), (3, 4)))[0] == sample(ONE, 1, 2)


def test_what_is_read_beside_the_table_is_read_once_more_after_the_last_move() -> None:
    asked: list[list[int]] = []

    def more(anew: NDArray[np.intp]) -> dict[str, list[tuple[int, ...]]]:
        asked.append(anew.tolist())
        return {"runq_histogram": [(row,) for row in anew.tolist()]}

    rows = SampleRows(more)
    for waits in (1, 1, 1, 2, 2, 2):
        samples = rows.update(PAIR, FIELDS, table((0, 0), (0, waits)))
        assert [each.runq_histogram for each in samples] == [(0,), (1,)]
    assert asked == [[0, 1], [0, 1], [1], [1]]
