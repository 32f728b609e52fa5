# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Schedule for keeping an attribute of tasks (cookie, resctrl group) in line with cgroups.

A task inherits such an attribute when it is forked and keeps it when it is moved to another
cgroup. The move probe reports moves, so only the moved tasks are handled in most ticks. Its events
can be lost, and it may not be loaded, so all tasks are scanned now and then as well.
"""

from controller.core.units import NS_PER_SEC
from controller.probes.cgroup_moves import Move, Moves

__all__ = ("TaskScan",)

_INTERVAL_WITH_MOVES_NS = 60 * NS_PER_SEC
_INTERVAL_NS = 5 * NS_PER_SEC
_REST_NS = NS_PER_SEC


class TaskScan:
    """When a full scan of the tasks is due, and the moves since the last scan.

    A full scan is due 60 s after the last one while moves are reported, 5 s after it while they
    are not, and at once after ``request``. However many scans are requested, none is due within
    1 s after ``begin`` or ``rest``.

    :param max_moves: more pending moves than this request a full scan, which is cheaper then;
        ``None``: no limit.
    """

    def __init__(self, max_moves: int | None = None) -> None:
        self.moves: list[Move] = []
        self._max_moves = max_moves
        self._interval_ns = _INTERVAL_NS
        self._due_ns = self._rest_until_ns = 0

    def update(self, moves: Moves | None) -> None:
        """Add the moves since the last tick; missing ones request a full scan.

        :param moves: as returned by the move probe, ``None`` without one.
        """
        self._interval_ns = _INTERVAL_NS if moves is None else _INTERVAL_WITH_MOVES_NS
        if moves is not None:
            self.moves.extend(moves.moves)
            too_many = self._max_moves is not None and len(self.moves) > self._max_moves
            if too_many or not moves.complete:
                self.request()

    def request(self) -> None:
        """Make a full scan due as soon as the rest after the last one is over."""
        self._due_ns = 0

    def reset(self) -> None:
        """Make a full scan due now, also within the rest after the last one."""
        self._due_ns = self._rest_until_ns = 0

    def resting(self, now_ns: int) -> bool:
        """Return whether the second after the last ``begin`` or ``rest`` is not over."""
        return now_ns < self._rest_until_ns

    def due(self, now_ns: int) -> bool:
        """Return whether a full scan is due."""
        return now_ns >= self._due_ns and not self.resting(now_ns)

    def begin(self, now_ns: int) -> None:
        """Start a full scan: it covers the pending moves and sets the time of the next one."""
        self.moves = []
        self._due_ns = now_ns + self._interval_ns
        self.rest(now_ns)

    def rest(self, now_ns: int) -> None:
        """Start the second in which no full scan is due."""
        self._rest_until_ns = now_ns + _REST_NS

    def take_moves(self) -> list[Move]:
        """Return the pending moves, oldest first, and drop them."""
        moves, self.moves = self.moves, []
        return moves
