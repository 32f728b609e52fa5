# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Whether best-effort work is what hurts a service; nobody is squeezed without that evidence."""

from collections.abc import Callable
from dataclasses import dataclass

from controller.core.decision import ChannelState

__all__ = ("Evidence", "EvidenceGate")

# Steal explains a wait when it is at least half as long, and at least 5 % of all CPU time:
# summed over many CPUs, a little steal elsewhere is long as well.
_STEAL_TO_WAIT = 0.5
_STEAL_PER_CPU = 0.05

# Once squeezed, best-effort inflicts less: the share that keeps a squeeze up is half of the
# one that starts it, or the squeeze would end itself and come back.
_KEEP = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known about a service's wait, over the indicator's window.

    ``be_share`` is best-effort's part of the inflicted wait (``None``: nothing was inflicted).
    ``inflicted_cpus`` and ``steal_cpus`` are seconds per second; ``cpus`` of the machine.
    """

    be_share: float | None
    throttled_ns: int | None
    inflicted_cpus: float
    steal_cpus: float | None
    cpus: int


class EvidenceGate:
    """Judges one service in every tick."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = ChannelState.FREE

    def update(
        self, hurting: bool, find: Callable[[], Evidence], be_share_min: float
    ) -> ChannelState:
        """Return SQUEEZE if the loops may act, else SELF, STEAL or NOT_BE.

        A service that is not *hurting* accuses nobody, and its loops may act: they release. *find*
        returns the evidence, where it is asked for.
        """
        if not hurting and self.state is not ChannelState.SQUEEZE:
            self.state = ChannelState.FREE
            return self.state
        evidence = find()
        share = evidence.be_share or 0.0
        needed = be_share_min * (_KEEP if self.state is ChannelState.SQUEEZE else 1.0)
        if not hurting:
            if share < needed:
                self.state = ChannelState.FREE
        elif evidence.throttled_ns:
            self.state = ChannelState.SELF
        elif _steal_explains(evidence):
            self.state = ChannelState.STEAL
        elif share < needed:
            self.state = ChannelState.NOT_BE
        else:
            self.state = ChannelState.SQUEEZE
        return self.state


def _steal_explains(evidence: Evidence) -> bool:
    steal = evidence.steal_cpus
    return (
        steal is not None
        and steal >= _STEAL_PER_CPU * evidence.cpus
        and steal >= _STEAL_TO_WAIT * evidence.inflicted_cpus
    )
