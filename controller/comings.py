# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""PURE: who came and who went between two looks at the workloads.

Of a thousand workloads a handful changes in a second. Whoever keeps something for each of them is
told everybody who is here now, compares that with whom it was told last, and touches only what
differs. Nothing is lost by that when somebody misses a look: the next comparison makes up for it.
"""

from collections.abc import Sequence
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


def comings(before: Sequence[Workload], after: Sequence[Workload]) -> Comings:
    """Return who is in one of *before* and *after* only, *came* in the order of *after*.

    It is quick where those who stayed are the same objects, and right where they are not.
    """
    left = dict(zip(map(id, before), before, strict=True))
    came = [workload for workload in after if left.pop(id(workload), None) is None]
    gone = list(left.values())
    if came and gone:
        stayed = set(came).intersection(gone)
        came = [workload for workload in came if workload not in stayed]
        gone = [workload for workload in gone if workload not in stayed]
    return Comings(tuple(came), tuple(gone))
