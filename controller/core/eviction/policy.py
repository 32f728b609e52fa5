# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Eviction policy: which workload is evicted when every knob of a channel is at its stop.

At most one eviction is in progress. After the victim is gone the policy waits 30 s and compares the
deviation of the same loop before and after; without improvement the cool-down doubles. Without
evidence against best-effort work nothing is evicted, however much the service suffers. Evictions
are carried out by other components, which answer later. If a victim cannot be evicted (a disruption
budget), the next candidate is tried, provided that the remaining candidates alone caused at least
``be_share_min``.
"""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from controller.core.decision import Eviction, Verdict
from controller.core.eviction.budget import (
    HELD_NS,
    HOUR_NS,
    LEAVE_NS,
    Candidate,
    EvictionBudget,
    EvictionHistory,
)
from controller.core.limiters import smoothing
from controller.core.model import CgroupId, Channel, EvictionAnswer, EvictionResult, IndicatorName
from controller.core.settings import DEAD_ZONE
from controller.core.units import NS_PER_SEC

__all__ = ("Case", "EvictionPolicy")

# The time that windows and filters need to show the effect, after the victim is gone.
_VERIFY_NS = 30 * NS_PER_SEC
# The pause after a refused eviction. A budget over a hundred pods must not cause a burst of
# requests, nor an overload taint that is set and removed with each of them.
_NEXT_NS = 5 * NS_PER_SEC


class Case(NamedTuple):
    """The case of one channel for an eviction, in one tick.

    ``at_stop``: every knob has its strictest setting. ``deviation`` is the filtered one of
    ``indicator`` of the service that suffers most, ``be_share`` the part that best-effort caused
    (``None``: not known), ``be_share_min`` the part that justifies an eviction. ``enabled`` and
    ``after_ns`` are those of the service's profile.
    """

    channel: Channel
    service: str
    indicator: IndicatorName
    at_stop: bool
    deviation: float | None
    be_share: float | None
    be_share_min: float
    enabled: bool
    after_ns: int

    @property
    def caused(self) -> bool:
        """Whether best-effort caused enough of the deviation."""
        return self.be_share is not None and self.be_share >= self.be_share_min


@dataclass(slots=True)
class _Trial:
    """An eviction whose effect is not known yet, to be seen in ``indicator`` of its service.

    ``before`` is the smoothed deviation at the request, ``after`` the present one; ``None``: it is
    not known now, because the service left, is idle, or has no data.
    """

    eviction: Eviction
    indicator: IndicatorName
    before: float
    asked_ns: int
    after: float | None = None
    leave_ns: int = LEAVE_NS
    gone_ns: int | None = None

    @property
    def end_ns(self) -> int:
        """The time by which the effect is known at the latest."""
        gone_ns = self.asked_ns + self.leave_ns if self.gone_ns is None else self.gone_ns
        return gone_ns + _VERIFY_NS


@dataclass(slots=True)
class _Record:
    """State of one channel.

    ``since_ns`` is the time since when it is a case (``None``: it is none), ``deviation`` the
    smoothed one of ``loop`` (service and indicator), ``pause_ns`` the last cool-down and
    ``not_before_ns`` its end. ``logged``: the verdict that best-effort is not the cause was given.
    """

    since_ns: int | None = None
    loop: tuple[str, IndicatorName] | None = None
    deviation: float = 0.0
    not_before_ns: int = 0
    pause_ns: int = 0
    logged: bool = False


@dataclass(slots=True)
class EvictionPolicy:
    """Decides in every tick whether a workload is evicted, and which.

    ``verdicts`` explains the decisions that changed in the last tick. ``budget`` is shared with
    evictions for other reasons.
    """

    budget: EvictionBudget
    verdicts: list[Verdict] = field(default_factory=list)
    _records: dict[Channel, _Record] = field(default_factory=dict)
    _trial: _Trial | None = None
    _held_until_ns: int = 0
    _last_ns: int | None = None

    @property
    def in_progress(self) -> bool:
        """Whether an eviction was asked for whose effect is not known yet."""
        return self._trial is not None

    @property
    def history(self) -> EvictionHistory:
        """The history for the policy that replaces this one, even during an eviction."""
        pauses = [self.budget.before.not_before_ns]
        pauses += [record.not_before_ns for record in self._records.values()]
        if self._trial is not None:
            pauses.append(self._trial.end_ns + self.budget.limits.cool_down_ns)
        return EvictionHistory(self.budget.asked_ns, max(pauses))

    def step(
        self,
        now_ns: int,
        cases: Iterable[Case],
        candidates: Callable[[Case], Iterable[Candidate]],
        present: Container[CgroupId],
        deviation_of: Callable[[str, IndicatorName], float | None],
        answers: Iterable[EvictionAnswer] = (),
        *,
        may_evict: bool = True,
    ) -> Eviction | None:
        """Return the eviction to request in this tick, if any.

        *candidates* returns the workloads that may be evicted for a case; *present* are the
        workloads of this tick; *deviation_of* returns the filtered deviation of a service's
        indicator, ``None`` if it is not known now; *answers* are those to earlier evictions.
        *may_evict*: there is no other eviction in this tick.
        """
        self.verdicts = []
        for answer in answers:
            self._update_trial(answer, now_ns)
        dt_s = 0.0 if self._last_ns is None else (now_ns - self._last_ns) / 1e9
        self._last_ns = now_ns
        # By smoothed deviations cases are ranked and effects are measured.
        weight = smoothing(dt_s, 5.0)
        if self._trial is not None:
            self._verify(self._trial, now_ns, present, deviation_of, weight)
        due = [case for case in cases if self._is_due(case, now_ns, weight)]
        held = self._trial is not None or now_ns < self._held_until_ns or not may_evict
        if held or not due or not self.budget.allows(now_ns):
            return None
        for case in sorted(due, key=lambda each: -self._records[each.channel].deviation):
            victim = self._choose(case, candidates(case), now_ns)
            if victim is not None:
                return self._evict(case, victim, now_ns)
        return None

    def _update_trial(self, answer: EvictionAnswer, now_ns: int) -> None:
        trial, result = self._trial, answer.result
        asked = None if trial is None else (trial.eviction.cgroup, trial.eviction.channel)
        if trial is None or asked != (answer.cgroup, answer.channel):
            return  # that eviction was given up, or is one for memory
        self.budget.take(answer, trial.asked_ns, now_ns)
        if result.leaves:
            trial.leave_ns = max(LEAVE_NS, answer.wait_ns)
        elif result in (EvictionResult.FROZEN, EvictionResult.KILLED):
            trial.gone_ns = now_ns
        elif result is not EvictionResult.GONE:
            # What was gone is no eviction of ours; its effect is verified all the same.
            refused = result is EvictionResult.REFUSED
            wait_ns = _NEXT_NS if refused else answer.wait_ns or HELD_NS
            self._trial = None
            self._held_until_ns = max(self._held_until_ns, now_ns + wait_ns)
        text = f"eviction {result}: {answer.message}"
        self.verdicts.append(Verdict(subject=trial.eviction.name, text=text))

    def _is_due(self, case: Case, now_ns: int, weight: float) -> bool:
        record = self._records.setdefault(case.channel, _Record())
        deviation = case.deviation or 0.0
        loop, record.loop = record.loop, (case.service, case.indicator)
        # Deviations of two loops are not averaged: that before an eviction is compared to later.
        before = record.deviation if loop == record.loop else None
        record.deviation = _smoothed(before, deviation, weight)
        if not case.at_stop or deviation <= 0:
            record.since_ns = None
            record.logged = False
            return False
        if record.since_ns is None:
            record.since_ns = now_ns
        lasted = now_ns - record.since_ns >= case.after_ns
        if lasted and case.be_share is not None and not case.caused and not record.logged:
            record.logged = True
            text = (
                f"suffers on {case.channel} although every knob is at its stop: not caused by "
                "best-effort, nothing is evicted"
            )
            self.verdicts.append(Verdict(subject=case.service, text=text))
        return lasted and case.caused and case.enabled and now_ns >= record.not_before_ns

    def _verify(
        self,
        trial: _Trial,
        now_ns: int,
        present: Container[CgroupId],
        deviation_of: Callable[[str, IndicatorName], float | None],
        weight: float,
    ) -> None:
        eviction = trial.eviction
        now = deviation_of(eviction.service, trial.indicator)
        trial.after = None if now is None else _smoothed(trial.after, now, weight)
        if trial.gone_ns is None:
            if eviction.cgroup not in present:
                trial.gone_ns = now_ns
            elif now_ns - trial.asked_ns >= trial.leave_ns:
                self._finish(trial, now_ns, helped=False, text="did not leave")
            return
        if now_ns - trial.gone_ns < _VERIFY_NS:
            return
        if trial.after is None:
            text = f"{eviction.service} left, is idle or has no data"
            self._finish(trial, now_ns, None, text)
            return
        helped = trial.before - trial.after >= DEAD_ZONE
        text = f"deviation {trial.before:.2f} before, {trial.after:.2f} after"
        self._finish(trial, now_ns, helped, text)

    def _finish(self, trial: _Trial, now_ns: int, helped: bool | None, text: str) -> None:
        record = self._records[trial.eviction.channel]
        # An eviction that did not help is not repeated soon: its evidence may have been wrong.
        least_ns = self.budget.limits.cool_down_ns
        longest_ns = max(least_ns, HOUR_NS)
        pause_ns = max(least_ns, record.pause_ns)
        if helped is None:
            record.pause_ns, result = pause_ns, "was not verified"
        elif helped:
            record.pause_ns, result = least_ns, "helped"
        else:
            record.pause_ns, result = min(longest_ns, 2 * pause_ns), "did not help"
        record.not_before_ns = now_ns + record.pause_ns
        record.since_ns = None
        self._trial = None
        self.verdicts.append(
            Verdict(subject=trial.eviction.name, text=f"its eviction {result}: {text}")
        )

    def _choose(self, case: Case, candidates: Iterable[Candidate], now_ns: int) -> Candidate | None:
        possible = [
            each
            for each in candidates
            if each.blame > 0 and self.budget.is_candidate(each.cgroup, now_ns)
        ]
        if sum(each.share for each in possible) < case.be_share_min:
            return None  # workloads that cannot be evicted caused most of the deviation
        return min(possible, key=lambda each: each.order, default=None)

    def _evict(self, case: Case, victim: Candidate, now_ns: int) -> Eviction:
        record = self._records[case.channel]
        assert record.since_ns is not None
        lasted_s = (now_ns - record.since_ns) / NS_PER_SEC
        reason = (
            f"{case.service} suffers on {case.channel} (deviation {record.deviation:.2f}) although "
            f"every knob has been at its stop for {lasted_s:.0f} s; {victim.name} contributed most"
        )
        eviction = Eviction(
            cgroup=victim.cgroup,
            name=victim.name,
            channel=case.channel,
            service=case.service,
            blame=victim.blame,
            reason=reason,
        )
        self._trial = _Trial(eviction, case.indicator, record.deviation, now_ns)
        self.budget.spend(now_ns)
        self.verdicts.append(Verdict(subject=victim.name, text=f"to be evicted: {reason}"))
        return eviction


def _smoothed(average: float | None, value: float, weight: float) -> float:
    return value if average is None else average + weight * (value - average)
