# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which best-effort workload has to go, when every knob of a channel is at its stop.

One at a time: after each, the policy waits until the workload is gone and looks whether the
service is better for it, before it thinks of another. Without evidence against best-effort
nobody goes, however much the service suffers. Who carries the evictions out answers later: who
may not go makes room for the next one with the same evidence, that is if those who are left have
done enough of it without him.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
import math
from typing import NamedTuple

from controller.core.decision import Eviction, Verdict
from controller.core.model import CgroupId, Channel, EvictionAnswer, EvictionResult
from controller.core.settings import EvictionLimits
from controller.core.units import NS_PER_SEC

__all__ = ("Candidate", "Case", "EvictionHistory", "EvictionPolicy")

# A victim that is not gone after this time is given up, and another may be chosen.
_LEAVE_NS = 120 * NS_PER_SEC
# After it left, the windows and filters need this long to show what that changed.
_VERIFY_NS = 30 * NS_PER_SEC
_LONGEST_COOL_DOWN_NS = 3600 * NS_PER_SEC
_HOUR_NS = 3600 * NS_PER_SEC
# What refuses to go (a disruption budget) is not asked again for this time.
_REFUSED_NS = 300 * NS_PER_SEC
# Until the next is asked: a budget over a hundred pods must not make a storm of requests, and a
# mark that comes and goes with each of them.
_NEXT_NS = 5 * NS_PER_SEC
# When nobody can be evicted at all, the next try is not before.
_HELD_NS = 60 * NS_PER_SEC
# The smallest fall of the deviation that counts as help: the half-width of a dead zone.
_HELP = 0.1
# A deviation that has been positive on the whole: this is its time constant.
_SMOOTH_S = 5.0


class Case(NamedTuple):
    """What one channel has against best-effort in one tick.

    ``at_stop``: no knob can be squeezed any further. ``deviation`` is the filtered one of the
    service that suffers most, ``be_share`` best-effort's part in it (``None``: not known), of
    which ``be_share_min`` is enough.
    """

    channel: Channel
    service: str
    at_stop: bool
    deviation: float | None
    be_share: float | None
    be_share_min: float
    enabled: bool
    after_ns: int

    @property
    def caused(self) -> bool:
        """Whether best-effort is the cause."""
        return self.be_share is not None and self.be_share >= self.be_share_min


class Candidate(NamedTuple):
    """Somebody who may be evicted. More ``blame``, less ``priority``, more ``size`` go first.

    ``share`` is his part in what the service suffers; all of best-effort's are ``Case.be_share``.
    """

    cgroup: CgroupId
    name: str
    blame: float
    share: float
    priority: int
    size: float


class EvictionHistory(NamedTuple):
    """What a policy that takes over from another one has to know, in the time of the ticks.

    ``asked_ns`` are the evictions of the last hour, the oldest first; there is none before
    ``not_before_ns``.
    """

    asked_ns: tuple[int, ...] = ()
    not_before_ns: int = 0


@dataclass(slots=True)
class _Trial:
    """An eviction whose effect is not known yet."""

    eviction: Eviction
    before: float
    asked_ns: int
    leave_ns: int = _LEAVE_NS
    gone_ns: int | None = None

    @property
    def end_ns(self) -> int:
        """When its effect will be known at the latest."""
        gone_ns = self.asked_ns + self.leave_ns if self.gone_ns is None else self.gone_ns
        return gone_ns + _VERIFY_NS


@dataclass(slots=True)
class _Record:
    """One channel: since when it is a case, and how long to wait after the last eviction."""

    since_ns: int | None = None
    deviation: float = 0.0
    not_before_ns: int = 0
    pause_ns: int = 0
    told: bool = False


@dataclass(slots=True)
class EvictionPolicy:
    """Decides in every tick. ``verdicts`` says what changed in the last one.

    ``before`` is the ``past`` of the policy whose place this one takes.
    """

    limits: EvictionLimits = field(default_factory=EvictionLimits)
    before: EvictionHistory = field(default_factory=EvictionHistory)
    verdicts: list[Verdict] = field(default_factory=list)
    _records: dict[Channel, _Record] = field(default_factory=dict)
    _trial: _Trial | None = None
    _done_ns: deque[int] = field(default_factory=deque)
    _refused_ns: dict[CgroupId, int] = field(default_factory=dict)
    _held_until_ns: int = 0
    _last_ns: int | None = None

    def __post_init__(self) -> None:
        self._done_ns.extend(self.before.asked_ns)

    @property
    def history(self) -> EvictionHistory:
        """What the next one has to know if this one ends now, in the middle of an eviction even."""
        pauses = [self.before.not_before_ns]
        pauses += [record.not_before_ns for record in self._records.values()]
        if self._trial is not None:
            pauses.append(self._trial.end_ns + self.limits.cool_down_ns)
        return EvictionHistory(tuple(self._done_ns), max(pauses))

    def step(
        self,
        now_ns: int,
        cases: Iterable[Case],
        candidates: Callable[[Case], Iterable[Candidate]],
        present: Container[CgroupId],
        answers: Iterable[EvictionAnswer] = (),
    ) -> Eviction | None:
        """Return the eviction to ask for in this tick, at most one.

        *candidates* returns those who may be evicted for a case at all; *present* is who is here;
        *answers* are those to what was asked for earlier.
        """
        self.verdicts = []
        for answer in answers:
            self._update_trial(answer, now_ns)
        dt_s = 0.0 if self._last_ns is None else (now_ns - self._last_ns) / 1e9
        self._last_ns = now_ns
        weight = 1.0 - math.exp(-dt_s / _SMOOTH_S)
        self._verify(now_ns, present)
        ripe = [case for case in cases if self._is_ripe(case, now_ns, weight)]
        held_until_ns = max(self._held_until_ns, self.before.not_before_ns)
        if self._trial is not None or now_ns < held_until_ns or not self._has_budget(now_ns):
            return None
        for case in sorted(ripe, key=lambda each: -self._records[each.channel].deviation):
            victim = self._choose(case, candidates(case), now_ns)
            if victim is not None:
                return self._evict(case, victim, now_ns)
        return None

    def _update_trial(self, answer: EvictionAnswer, now_ns: int) -> None:
        trial, result = self._trial, answer.result
        if trial is None or trial.eviction.cgroup != answer.cgroup:
            return  # it was given up
        if result in (EvictionResult.EVICTED, EvictionResult.UNANSWERED):
            trial.leave_ns = max(_LEAVE_NS, answer.wait_ns)
        elif result in (EvictionResult.FROZEN, EvictionResult.KILLED):
            trial.gone_ns = now_ns
            self._leave_alone(answer.cgroup, now_ns, answer.wait_ns)
        elif result is EvictionResult.GONE:
            self._done_ns.pop()  # not by us; whether it helped is worth knowing all the same
        elif result is EvictionResult.REFUSED:
            self._take_back()
            self._leave_alone(answer.cgroup, now_ns, answer.wait_ns or _REFUSED_NS)
            self._held_until_ns = max(self._held_until_ns, now_ns + _NEXT_NS)
        else:
            self._take_back()
            self._held_until_ns = now_ns + (answer.wait_ns or _HELD_NS)
        text = f"eviction {result}: {answer.message}"
        self.verdicts.append(Verdict(subject=trial.eviction.name, text=text))

    def _take_back(self) -> None:
        self._trial = None
        self._done_ns.pop()

    def _leave_alone(self, cgroup: CgroupId, now_ns: int, wait_ns: int) -> None:
        waiting = {each: until for each, until in self._refused_ns.items() if until > now_ns}
        self._refused_ns = {**waiting, cgroup: now_ns + wait_ns}

    def _is_ripe(self, case: Case, now_ns: int, weight: float) -> bool:
        record = self._records.setdefault(case.channel, _Record())
        deviation = case.deviation or 0.0
        record.deviation += weight * (deviation - record.deviation)
        if not case.at_stop or deviation <= 0:
            record.since_ns = None
            record.told = False
            return False
        if record.since_ns is None:
            record.since_ns = now_ns
        lasted = now_ns - record.since_ns >= case.after_ns
        if lasted and not case.caused and not record.told:
            record.told = True
            text = f"{case.channel} is at its stop and it still hurts: not caused by best-effort"
            self.verdicts.append(Verdict(subject=case.service, text=text))
        return lasted and case.caused and case.enabled and now_ns >= record.not_before_ns

    def _verify(self, now_ns: int, present: Container[CgroupId]) -> None:
        trial = self._trial
        if trial is None:
            return
        eviction = trial.eviction
        if trial.gone_ns is None:
            if eviction.cgroup not in present:
                trial.gone_ns = now_ns
            elif now_ns - trial.asked_ns >= trial.leave_ns:
                self._finish(trial, now_ns, helped=False, text="did not leave")
            return
        if now_ns - trial.gone_ns < _VERIFY_NS:
            return
        after = self._records[eviction.channel].deviation
        helped = trial.before - after >= _HELP
        text = f"deviation {trial.before:.2f} before, {after:.2f} without it"
        self._finish(trial, now_ns, helped, text)

    def _finish(self, trial: _Trial, now_ns: int, helped: bool, text: str) -> None:
        record = self._records[trial.eviction.channel]
        # What did not help is not repeated soon: the evidence was wrong, or something else is.
        least_ns = self.limits.cool_down_ns
        longest_ns = max(least_ns, _LONGEST_COOL_DOWN_NS)
        pause_ns = max(least_ns, record.pause_ns)
        record.pause_ns = least_ns if helped else min(longest_ns, 2 * pause_ns)
        record.not_before_ns = now_ns + record.pause_ns
        record.since_ns = None
        self._trial = None
        result = "helped" if helped else "did not help"
        self.verdicts.append(
            Verdict(subject=trial.eviction.name, text=f"its eviction {result}: {text}")
        )

    def _has_budget(self, now_ns: int) -> bool:
        done = self._done_ns
        while done and done[0] <= now_ns - _HOUR_NS:
            done.popleft()
        return len(done) < self.limits.per_hour

    def _choose(self, case: Case, candidates: Iterable[Candidate], now_ns: int) -> Candidate | None:
        willing = [
            each
            for each in candidates
            if each.blame > 0 and now_ns >= self._refused_ns.get(each.cgroup, 0)
        ]
        if sum(each.share for each in willing) < case.be_share_min:
            return None  # most of it is the work of those who may not go
        order = sorted(willing, key=lambda each: (-each.blame, each.priority, -each.size))
        return order[0] if order else None

    def _evict(self, case: Case, victim: Candidate, now_ns: int) -> Eviction:
        record = self._records[case.channel]
        assert record.since_ns is not None
        lasted_s = (now_ns - record.since_ns) / NS_PER_SEC
        reason = (
            f"{case.service} suffers on {case.channel} (deviation {record.deviation:.2f}) although "
            f"every knob has been at its stop for {lasted_s:.0f} s; {victim.name} is to blame most"
        )
        eviction = Eviction(
            cgroup=victim.cgroup,
            name=victim.name,
            channel=case.channel,
            service=case.service,
            blame=victim.blame,
            reason=reason,
        )
        self._trial = _Trial(eviction, record.deviation, now_ns)
        self._done_ns.append(now_ns)
        self.verdicts.append(Verdict(subject=victim.name, text=f"to be evicted: {reason}"))
        return eviction
