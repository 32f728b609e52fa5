# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Core-scheduling cookies in a story: from when to when, for which service, and what they brought.

The decision and its verdict are those of ``core.writes.switches``, which holds a cookie for
each group of best-effort workloads and decides for all groups together.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from controller.agent.history.incidents import Cookie
from controller.agent.history.records import Moment, Write
from controller.core.model import Channel, Knob, Mode
from controller.core.units import NS_PER_SEC
from controller.core.writes.switches import HELPED, IN_VAIN, REMOVED, SET

__all__ = ("Cookies",)

# A ratio of core sharing is one over 30 s, in parts of a second (probes.smt_overlap). From this
# time on after the decision it has no part from before.
_MEASURED_NS = 32 * NS_PER_SEC


@dataclass(slots=True)
class _Decision:
    """What is in force for all groups, since ``since_ns``; the fields are those of ``Cookie``."""

    since_ns: int
    service: str | None = None
    reason: str = ""
    overlap_before_ratio: float | None = None
    overlap_ratio: float | None = None
    verdict: str = ""
    helped: bool | None = None


class Cookies:
    """The cookies that concern one story."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._decision = _Decision(0)
        self._open: Cookie | None = None
        self._overlap: float | None = None

    def begin(self, wall_ns: int, writes: Iterable[Write]) -> None:
        """Take the cookies that were held before the first moment."""
        self._held.update(_groups(writes, held=True))
        self._decision = _Decision(wall_ns)

    def take(
        self, wall_ns: int, moment: Moment, concerns: Callable[[str], bool], released: str
    ) -> Iterator[Cookie]:
        """Take a moment; yield an incident that begins with it.

        *concerns* says whether a group matters to the story; *released* is why none does any more.
        """
        self._held.update(_groups(moment.writes, held=True))
        self._held.difference_update(_groups(moment.writes, held=False))
        verdict = next((v.text for v in moment.verdicts if v.subject == Knob.CORE_COOKIE), "")
        self._decide(wall_ns, moment, verdict)
        group = next(filter(concerns, sorted(self._held)), None)
        if self._open is None and group is not None:
            self._open = Cookie(began_ns=wall_ns, mode=moment.mode, group=group)
            yield self._open
        if self._open is not None:
            decision = self._decision
            self._open.service, self._open.reason = decision.service, decision.reason
            self._open.overlap_before_ratio = decision.overlap_before_ratio
            self._open.overlap_ratio = decision.overlap_ratio
            self._open.verdict, self._open.helped = decision.verdict, decision.helped
            if group is None:
                removed = verdict.removeprefix(REMOVED) if verdict.startswith(REMOVED) else released
                self.end(wall_ns, removed)

    def end(self, wall_ns: int, reason: str) -> None:
        """End the incident that lasts, if any."""
        if self._open is not None:
            self._open.ended_ns, self._open.ended_by = wall_ns, reason
            self._open = None

    def clear(self) -> None:
        """Every knob was restored."""
        self._held.clear()

    def _decide(self, wall_ns: int, moment: Moment, verdict: str) -> None:
        overlap = moment.core_overlap_ratio
        if verdict.startswith(SET):
            self._decision = _Decision(
                wall_ns,
                service=_service(moment) if verdict.startswith(f"{SET}: ") else None,
                reason=verdict.removeprefix(SET).lstrip(":, "),
                overlap_before_ratio=self._overlap,
            )
        elif overlap is not None and wall_ns - self._decision.since_ns >= _MEASURED_NS:
            self._decision.overlap_ratio = overlap
        # What the planner concludes while it only observes is not what a cookie does.
        if moment.mode is Mode.ENFORCE and verdict.startswith((HELPED, IN_VAIN)):
            self._decision.verdict = verdict.removeprefix(HELPED).removeprefix(IN_VAIN)
            self._decision.helped = verdict.startswith(HELPED)
        self._overlap = overlap


def _groups(writes: Iterable[Write], *, held: bool) -> Iterator[str]:
    return (
        each.target.path for each in writes if each.knob is Knob.CORE_COOKIE and each.held is held
    )


def _service(moment: Moment) -> str | None:
    demand = next((each for each in moment.demands if each.channel is Channel.CACHE), None)
    return None if demand is None else demand.service
