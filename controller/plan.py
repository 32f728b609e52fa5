# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""From snapshots to plans: what to write, why, and everything a reader wants to know of it.

The planner is a pure function of the sequence of its inputs: no clock, no file, no order that
depends on hashing. The same calls in the same order give equal plans.

What it expects of its caller: ``Snapshot.knobs`` holds the last known readings in every tick,
with the outcomes of writes folded in; ``outcomes`` are those of the last plan's actions. A
best-effort workload whose knob has no reading is not acted on.

In observe mode nothing is written and there are no outcomes: the planner goes on as if every
action had been applied, so it shows what it would do, once per change. The plant does not
answer, of course: a loop that would squeeze ends at full demand. When the mode changes, the
planner forgets what it pretended and starts from the readings and demand zero.
"""

from collections.abc import Sequence

from controller.control.cpu import CpuChannel
from controller.control.latch import Latch
from controller.control.ownership import KnobBook
from controller.control.quota import format_quota, parse_quota, quota_for
from controller.control.wording import Narrator
from controller.indicators.roster import Roster
from controller.indicators.senses import Senses
from controller.model import (
    Action,
    CgroupId,
    Knob,
    KnobValue,
    Mode,
    Outcome,
    Plan,
    SafeState,
    Settings,
    Snapshot,
    Workload,
)
from controller.units import NS_PER_SEC

__all__ = ("Planner",)

_IDLE_HOLD_NS = 60 * NS_PER_SEC
_IDLE_LONGEST_NS = 3600 * NS_PER_SEC
_IDLE = KnobValue("1")
# A change of a granted quota smaller than this is noise, and not worth a write.
_QUANTUM = 0.05
# A quota in whole microseconds is this close to what was asked for.
_ROUNDING = 1e-3


class Planner:
    """The arbiter: the only one that decides what is written."""

    __slots__ = (
        "_asked",
        "_blocked",
        "_book",
        "_channel",
        "_grants",
        "_idle",
        "_idle_on",
        "_last_ns",
        "_narrator",
        "_roster",
        "_senses",
        "_settings",
        "_workloads",
    )

    def __init__(self, settings: Settings, workloads: Sequence[Workload]) -> None:
        """:raises KeyError: a latency-sensitive workload names a profile that does not exist."""
        self._settings = settings
        self._workloads = tuple(workloads)
        self._roster = Roster(self._workloads, settings.profiles)
        self._senses = Senses()
        self._book = KnobBook()
        self._channel = CpuChannel(settings)
        self._idle = Latch(_IDLE_HOLD_NS, _IDLE_LONGEST_NS)
        self._narrator = Narrator()
        self._idle_on = False
        self._grants: dict[CgroupId, float] = {}
        # CPUs that were last asked for, and who cannot be limited: kept between the ticks in
        # which nothing happened, so that those do not look at every workload.
        self._asked: dict[CgroupId, float] = {}
        self._blocked: frozenset[CgroupId] | None = None
        self._last_ns: int | None = None

    def reconfigure(self, settings: Settings, workloads: Sequence[Workload] | None = None) -> None:
        """Take new settings without a bump: loops and knobs stay where they are.

        With *workloads* these change in the same step, so that either may need the other.

        :raises KeyError: a profile that is in use is missing; the old settings stay.
        """
        workloads = self._workloads if workloads is None else tuple(workloads)
        roster = Roster(workloads, settings.profiles)
        if settings.mode is not self._settings.mode:
            self._book.forget()
            self._channel = CpuChannel(settings)
        self._settings = settings
        self._workloads = workloads
        self._roster = roster
        self._blocked = None
        self._channel.reconfigure(settings)
        # A standing protection that the new profiles do not want ends now, without its hold.
        self._idle = Latch(_IDLE_HOLD_NS, _IDLE_LONGEST_NS)

    def set_workloads(self, workloads: Sequence[Workload]) -> None:
        """Take the workloads that are here now. What was done to others is undone.

        :raises KeyError: a latency-sensitive workload names a profile that does not exist.
        """
        self._roster = Roster(workloads, self._settings.profiles)
        self._workloads = tuple(workloads)
        self._blocked = None

    def step(self, snapshot: Snapshot, outcomes: Sequence[Outcome]) -> Plan:
        """Return the plan for *snapshot*; *outcomes* are those of the last plan's actions."""
        now_ns = snapshot.time_ns
        tick_ns = self._settings.tick_ns
        dt_ns = max(0, now_ns - self._last_ns) if self._last_ns is not None else 0
        self._last_ns = now_ns
        gap = dt_ns == 0 or dt_ns > 2 * tick_ns
        executed = self._settings.mode is Mode.ENFORCE
        self._book.learn(snapshot.knobs, outcomes, executed, now_ns)
        self._senses.update(
            snapshot,
            self._roster,
            dt_ns,
            oldest_ns=2 * tick_ns,
            rebase=dt_ns > self._settings.stale_ticks * tick_ns,
        )
        anew = self._blocked is None or not self._book.quiet
        if self._blocked is None or anew:
            self._blocked = self._book.blocked(self._roster.best_effort, Knob.CPU_QUOTA, now_ns)
        before = self._grants
        self._grants = self._channel.step(
            self._senses,
            self._roster,
            self._blocked,
            now_ns,
            min(dt_ns, 2 * tick_ns) / 1e9,
            hold=gap,
        )
        actions = self._actions(before, anew, now_ns)
        self._book.commit(actions)
        rung = self._channel.rung
        return Plan(
            time_ns=now_ns,
            actions=actions,
            demands=(self._channel.demand,),
            loops=self._channel.reports,
            indicators=self._channel.indicators,
            verdicts=(
                *self._narrator.tell(self._channel, self._senses, self._workloads),
                *self._book.reports,
            ),
            quota_ceiling_cpus=rung.ceiling.cpus,
            quota_granted_cpus=rung.total,
            safe=self._channel.safe,
        )

    def _actions(
        self, before: dict[CgroupId, float], anew: bool, now_ns: int
    ) -> tuple[Action, ...]:
        if self._channel.safe:
            self._channel.release()
            self._grants = self._safe_grants()
        idle = self._idle_actions(anew, now_ns)
        quotas = self._quota_actions(before, anew, now_ns)
        if anew:
            quotas.extend(self._undo_others(now_ns))
        return (*idle, *sorted(quotas, key=_write_order))

    def _safe_grants(self) -> dict[CgroupId, float]:
        if self._settings.safe_state is not SafeState.FLOOR:
            return {}
        floor = self._channel.limits(self._roster).floor
        return dict.fromkeys(self._roster.best_effort, floor)

    def _idle_actions(self, anew: bool, now_ns: int) -> list[Action]:
        if self._channel.safe:
            # Where it is, it stays; unless everything is to be restored.
            on = self._idle_on and self._settings.safe_state is not SafeState.RESTORE
        else:
            profiles = self._roster.profiles
            on = self._idle.update(any(profile.sched_idle for profile in profiles), now_ns)
        if on is self._idle_on and not anew:
            return []
        self._idle_on = on
        actions = []
        for scope, id_ in self._roster.best_effort:
            if on:
                text = "a latency-sensitive service is present: sched-idle for best-effort"
                action = self._book.request(scope, id_, Knob.SCHED_IDLE, _IDLE, text, now_ns)
            else:
                text = "sched-idle is not wanted now: the old weight is back"
                action = self._book.restore(scope, id_, Knob.SCHED_IDLE, text, now_ns)
            if action is not None:
                actions.append(action)
        return actions

    def _quota_actions(
        self, before: dict[CgroupId, float], anew: bool, now_ns: int
    ) -> list[Action]:
        grants = self._grants
        if grants is before and not anew:
            return []
        reason = self._narrator.reason(self._channel)
        floor = self._channel.limits(self._roster).floor
        asked = {} if anew else self._asked
        best_effort = self._roster.best_effort
        actions = []
        # Those that were limited before are looked at as well: they may have to be released.
        for cgroup in best_effort if anew else {**before, **grants}:
            cpus = grants.get(cgroup)
            last = asked.get(cgroup)
            if cpus is not None and last is not None and not _is_worth_a_write(cpus, last, floor):
                continue
            if cgroup in best_effort:
                action = self._quota_action(cgroup, cpus, floor, reason, now_ns)
                if action is not None:
                    actions.append(action)
            if cpus is not None:
                asked[cgroup] = self._applied(cgroup, cpus)
        self._asked = {cgroup: cpus for cgroup, cpus in asked.items() if cgroup in grants}
        return actions

    def _applied(self, cgroup: CgroupId, otherwise: float) -> float:
        value = self._book.value(*cgroup, Knob.CPU_QUOTA)
        cpus = None if value is None else parse_quota(value).cpus
        return otherwise if cpus is None else cpus

    def _undo_others(self, now_ns: int) -> list[Action]:
        actions = []
        for scope, id_, knob in self._book.held():
            if CgroupId(scope, id_) not in self._roster.best_effort:
                text = "no longer a best-effort workload"
                action = self._book.restore(scope, id_, knob, text, now_ns)
                if action is not None:
                    actions.append(action)
        return actions

    def _quota_action(
        self, cgroup: CgroupId, cpus: float | None, floor: float, reason: str, now_ns: int
    ) -> Action | None:
        scope, id_ = cgroup
        original = self._book.original(scope, id_, Knob.CPU_QUOTA)
        current = self._book.value(scope, id_, Knob.CPU_QUOTA)
        if original is None or current is None:
            return None
        allowed = parse_quota(original).cpus
        quota = None if cpus is None else quota_for(cpus)
        if (
            cpus is None
            or quota is None
            or (allowed is not None and (quota.cpus or 0.0) >= allowed)
        ):
            return self._book.restore(scope, id_, Knob.CPU_QUOTA, reason, now_ns)
        now = parse_quota(current).cpus
        limited = now is not None and current != original
        if limited and not _is_worth_a_write(cpus, now or 0.0, floor):
            return None
        return self._book.request(scope, id_, Knob.CPU_QUOTA, format_quota(quota), reason, now_ns)


def _is_worth_a_write(cpus: float, now: float, floor: float) -> bool:
    """Whether *cpus* differ from *now* by more than noise, or are a stop not yet reached."""
    return abs(cpus - now) >= _QUANTUM * now or cpus <= floor < now * (1 - _ROUNDING)


def _write_order(action: Action) -> tuple[bool, int]:
    # On cgroup v1 a child may not exceed its parent: lower children first, raise parents first.
    depth = action.target.path.count("/")
    lowers = _cpus(action.value) < _cpus(action.previous)
    return (not lowers, -depth if lowers else depth)


def _cpus(value: KnobValue) -> float:
    if len(value.split()) != 3:
        return 0.0
    cpus = parse_quota(value).cpus
    return float("inf") if cpus is None else cpus
