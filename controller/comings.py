# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""PURE: who came and who went between two looks at the workloads.

Of a thousand workloads a handful changes in a second. Whoever keeps something for each of them is
told everybody who is here now, compares that with whom it was told last, and touches only what
differs. Nothing is lost by that when somebody misses a look: the next comparison makes up for it.
"""

from operator import attrgetter
from typing import NamedTuple

from controller.model import QosClass, Workload

__all__ = ("Comings", "comings")


class Comings(NamedTuple):
    """Who differs. A workload that was changed (its class, its name) went as it was, and came."""

    came: tuple[Workload, ...]
    gone: tuple[Workload, ...]

    def of(self, qos: QosClass) -> "Comings":
        """Return those of a class; who left the class went."""
        return Comings(*(tuple(w for w in part if w.qos is qos) for part in self))

    def by(self, *fields: str) -> "Comings":
        """Return those who came or went also where only these *fields* are compared."""
        key = attrgetter(*fields)
        gone, came = set(map(key, self.gone)), set(map(key, self.came))
        return Comings(
            tuple(w for w in self.came if key(w) not in gone),
            tuple(w for w in self.gone if key(w) not in came),
        )


_Roll = tuple[Workload, ...]
# Many ask for the same: both rolls, and the answer.
_last: tuple[_Roll, _Roll, Comings] = ((), (), Comings((), ()))


def comings(before: _Roll, after: _Roll) -> Comings:
    """Return who is in one of *before* and *after* only, *came* in the order of *after*.

    It is quick where those who stayed are the same objects, and right where they are not.
    """
    global _last
    known = _last
    if known[0] is before and known[1] is after:
        return known[2]
    found = _compare(before, after)
    _last = before, after, found
    return found


def _compare(before: _Roll, after: _Roll) -> Comings:
    left = dict(zip(map(id, before), before, strict=True))
    came = [workload for workload in after if left.pop(id(workload), None) is None]
    gone = list(left.values())
    if came and gone:
        stayed = set(came).intersection(gone)
        came = [workload for workload in came if workload not in stayed]
        gone = [workload for workload in gone if workload not in stayed]
    return Comings(tuple(came), tuple(gone))
