# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Evidence that best-effort work causes a service's deviation; without it nothing is squeezed."""

from collections.abc import Callable
from dataclasses import dataclass
import math

from controller.core.decision import ChannelState

__all__ = ("Evidence", "EvidenceGate", "host_explains", "throttled_explains")

# A smaller part of the time than this explains nothing: of all CPU time, because a little steal on
# many CPUs without the service is long as well; of a service's time under its own quota, because
# at 1 % best-effort work still costs it far more, and at 10 % a tenth of its requests meets a quota
# that is used up.
_LEAST_RATIO = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known about the causes of a service's wait.

    ``be_share`` is best-effort's part of the inflicted wait, an average over seconds (``None``:
    nothing was inflicted). ``throttled_ratio`` is the share of its time, in the indicator's window,
    in which the service was throttled by its own quota (``None``: not measurable).
    ``inflicted_cpus`` and ``host_cpus`` (the window: the wait for other work, and on CPUs that were
    idle or stood still) and ``steal_cpus`` (an average) are seconds per second, ``cpus`` is the
    number of CPUs of the machine. ``is_wait``: ``be_share`` is of what the indicators measure, and
    not of the use of a resource. ``at_own_limit``: the service reached its own limit of memory.
    """

    be_share: float | None
    throttled_ratio: float | None = None
    inflicted_cpus: float = 0.0
    steal_cpus: float | None = None
    cpus: int = 1
    host_cpus: float = 0.0
    is_wait: bool = False
    at_own_limit: bool = False


@dataclass(slots=True)
class EvidenceGate:
    """Decides in every tick whether the loops of one service may squeeze.

    ``state`` is the decision: FREE, SQUEEZE, or the cause that rules a squeeze out. ``in_vain``:
    the host explains what the service suffers during a squeeze. ``log_gain`` is the logarithm of
    the factor by which the wait would be shorter without best-effort work, as far as the last
    evidence shows; infinite without any, and on channels whose evidence is not about waits.

    Best-effort work that is squeezed inflicts less, so half of what starts a squeeze keeps it up.
    Otherwise the squeeze would end itself and start again.
    """

    state: ChannelState = ChannelState.FREE
    in_vain: bool = False
    log_gain: float = math.inf

    def update(
        self, hurting: bool, find: Callable[[], Evidence], be_share_min: float
    ) -> ChannelState:
        """Return SQUEEZE or FREE if the loops may act, else SELF, STEAL or NOT_BE.

        Loops of a service that is not *hurting* may always act: they release. *find* returns the
        evidence; it is called only where the evidence decides. *be_share_min* is the least share
        of best-effort that justifies a squeeze.
        """
        self.in_vain = False
        self.log_gain = math.inf
        if not hurting and self.state is not ChannelState.SQUEEZE:
            self.state = ChannelState.FREE
            return self.state
        evidence = find()
        share = evidence.be_share or 0.0
        if evidence.is_wait and share < 1.0:
            self.log_gain = -math.log(1.0 - share)
        needed = be_share_min / (2 if self.state is ChannelState.SQUEEZE else 1)
        if not hurting:
            if share < needed:
                self.state = ChannelState.FREE
        elif evidence.at_own_limit or throttled_explains(
            evidence, 0.5 if self.state is ChannelState.SELF else 1.0
        ):
            self.state = ChannelState.SELF
        elif _steal_explains(evidence):
            self.state = ChannelState.STEAL
        elif host_explains(evidence):
            self.in_vain = self.state is ChannelState.SQUEEZE
            self.state = ChannelState.SQUEEZE if self.in_vain else ChannelState.STEAL
        elif share < needed:
            self.state = ChannelState.NOT_BE
        else:
            self.state = ChannelState.SQUEEZE
        return self.state


def throttled_explains(evidence: Evidence, part: float = 1.0) -> bool:
    """Return whether a service's own quota explains its waits; *part* lowers the limit for it."""
    ratio = evidence.throttled_ratio
    return ratio is not None and ratio >= part * _LEAST_RATIO


def _steal_explains(evidence: Evidence) -> bool:
    """Return whether steal is at least half as long as the wait, and not little of the time."""
    steal = evidence.steal_cpus
    least = max(_LEAST_RATIO * evidence.cpus, evidence.inflicted_cpus / 2)
    return steal is not None and steal >= least


def host_explains(evidence: Evidence) -> bool:
    """Return whether CPUs that stood still or woke up late explain the waits of a service.

    They do from half of its waits on: no squeeze makes an idle CPU wake up sooner.
    """
    return evidence.host_cpus > 0 and evidence.host_cpus >= evidence.inflicted_cpus
