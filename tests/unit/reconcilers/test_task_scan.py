# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""When all tasks are scanned, and which moves are pending in between."""

import pytest

from controller.core.units import NS_PER_SEC
from controller.probes.cgroup_moves import Move, Moves
from controller.reconcilers.task_scan import TaskScan

NO_MOVES = Moves((), complete=True)
MOVE = Move(None, 7, 7, whole=False)


def due_at(scan: TaskScan, seconds: float) -> bool:
    return scan.due(round(seconds * NS_PER_SEC))


@pytest.mark.parametrize(("moves", "interval_s"), [(NO_MOVES, 60), (None, 5)])
def test_full_scans_are_rarer_while_moves_are_reported(
    moves: Moves | None, interval_s: int
) -> None:
    scan = TaskScan()
    scan.update(moves)
    assert due_at(scan, 0)
    scan.begin(0)
    assert not due_at(scan, interval_s - 0.1)
    assert due_at(scan, interval_s)


def test_a_requested_scan_is_due_after_a_rest_of_one_second() -> None:
    scan = TaskScan()
    scan.begin(0)
    scan.request()
    assert scan.resting(NS_PER_SEC - 1) and not due_at(scan, 0.9)
    assert due_at(scan, 1)
    scan.rest(NS_PER_SEC)
    assert not due_at(scan, 1.9)
    scan.reset()
    assert due_at(scan, 1)


def test_missing_or_too_many_moves_request_a_scan() -> None:
    for moves in (Moves((), complete=False), Moves((MOVE,) * 3, complete=True)):
        scan = TaskScan(max_moves=2)
        scan.begin(0)
        scan.update(Moves((MOVE,) * 2, complete=True))
        assert not due_at(scan, 2)
        scan.update(moves)
        assert due_at(scan, 2)


def test_moves_are_pending_until_they_are_taken_or_a_scan_begins() -> None:
    scan = TaskScan()
    scan.update(Moves((MOVE,), complete=True))
    scan.update(None)
    assert scan.take_moves() == [MOVE] and scan.moves == []
    scan.update(Moves((MOVE, MOVE), complete=True))
    scan.begin(0)
    assert scan.moves == []
