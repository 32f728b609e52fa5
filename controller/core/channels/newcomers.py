# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Best-effort workloads that come in a squeeze, before it is known what they want.

The want of a workload is measured when it has run. A newcomer has the floor until then, so that it
has a quota before its first instruction. That is the floor of the configuration, also where many
workloads have lower ones: the container runtime runs in a new cgroup first, and needs some 30 ms.
A newcomer that uses much of the floor is limited by it, and its use no longer tells its want. It is
taken to want as much as the busy ones do on average, and for some seconds to do as much harm as the
worst of them: there is no evidence yet, and without any it would not be limited. One that uses
little for some seconds is measured like all others.
"""

from collections.abc import Collection, Container, Mapping

from controller.core.model import CgroupId
from controller.core.units import NS_PER_SEC

__all__ = ("Newcomers",)

_MUCH = 0.5
# Evidence of harm is that of some seconds.
_UNPROVEN_NS = 5 * NS_PER_SEC


class Newcomers:
    """The newcomers of the present squeeze: ``waiting`` ones, and ``wants`` of those that run.

    ``waiting`` has since when each waits, in ns. A newcomer is none any more as soon as the squeeze
    is divided by its want.
    """

    __slots__ = ("_known", "_proven_ns", "waiting", "wants")

    def __init__(self) -> None:
        self._known: Collection[CgroupId] = ()
        # When there is evidence of what they do.
        self._proven_ns: dict[CgroupId, int] = {}
        self.waiting: dict[CgroupId, int] = {}
        self.wants: dict[CgroupId, float] = {}

    def update(
        self,
        present: Collection[CgroupId],
        blocked: Container[CgroupId],
        divided: Mapping[CgroupId, float],
        use: Mapping[CgroupId, float],
        floor: float,
        now_ns: int,
        *,
        squeezed: bool,
    ) -> None:
        """Take the best-effort workloads that are *present* in this tick.

        :param blocked: those that cannot be limited now, so their use tells their want.
        :param divided: the wants by which the squeeze is divided now.
        :param use: the CPUs of those that use any; a newcomer has *floor*.
        :param squeezed: whether a service is protected by limits of best-effort work now.
        """
        self._proven_ns = {
            each: proven_ns
            for each, proven_ns in self._proven_ns.items()
            if squeezed and now_ns < proven_ns
        }
        before = {*self.waiting, *self.wants}
        if present is not self._known:
            before.update(each for each in present if each not in self._known)
            self._known = present
        if not before:
            return
        busy = [want for want in divided.values() if want >= floor]
        average = sum(busy) / len(busy) if busy else floor
        waiting, wants = {}, {}
        # In the order of the workloads: a result must not depend on the order of a set.
        for cgroup in present if squeezed else ():
            if cgroup not in before or cgroup in divided:
                continue
            used, since_ns = use.get(cgroup, 0.0), self.waiting.get(cgroup, now_ns)
            if used >= _MUCH * floor:
                wants[cgroup] = used if cgroup in blocked else max(used, average)
            elif not used or now_ns - since_ns < _UNPROVEN_NS:
                waiting[cgroup] = since_ns
        self.waiting, self.wants = waiting, wants
        self._proven_ns |= dict.fromkeys(wants, now_ns + _UNPROVEN_NS)

    def without_evidence(self, harm: Mapping[CgroupId, float]) -> Mapping[CgroupId, float]:
        """Return *harm* with the largest one for newcomers of which there is no evidence yet."""
        if not self._proven_ns:
            return harm
        most = max(harm.values(), default=1.0)
        return {each: most if each in self._proven_ns else own for each, own in harm.items()}
