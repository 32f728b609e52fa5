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

from collections.abc import Iterator, Sequence

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


class Planner:
    """The arbiter: the only one that decides what is written."""

    __slots__ = (
        "_book",
        "_channel",
        "_grants",
        "_idle",
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
        self._grants: dict[CgroupId, float] = {}
        self._last_ns: int | None = None

    def reconfigure(self, settings: Settings) -> None:
        """Take new settings without a bump: loops and knobs stay where they are.

        :raises KeyError: a profile that is in use is missing; the old settings stay.
        """
        roster = Roster(self._workloads, settings.profiles)
        if settings.mode is not self._settings.mode:
            self._book.forget()
            self._channel = CpuChannel(settings)
        self._settings = settings
        self._roster = roster
        self._channel.reconfigure(settings)
        # A standing protection that the new profiles do not want ends now, without its hold.
        self._idle = Latch(_IDLE_HOLD_NS, _IDLE_LONGEST_NS)

    def set_workloads(self, workloads: Sequence[Workload]) -> None:
        """Take the workloads that are here now. What was done to others is undone.

        :raises KeyError: a latency-sensitive workload names a profile that does not exist.
        """
        self._roster = Roster(workloads, self._settings.profiles)
        self._workloads = tuple(workloads)

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
        blocked = self._book.blocked(self._roster.best_effort, Knob.CPU_QUOTA, now_ns)
        self._grants = self._channel.step(
            self._senses,
            self._roster,
            blocked,
            now_ns,
            min(dt_ns, 2 * tick_ns) / 1e9,
            hold=gap,
        )
        actions = self._actions(now_ns)
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

    def _actions(self, now_ns: int) -> tuple[Action, ...]:
        safe = self._channel.safe
        if safe:
            self._channel.release()
            self._grants = self._safe_grants()
        reason = self._narrator.reason(self._channel)
        best_effort = self._roster.best_effort
        idle: list[Action] = []
        quotas: list[Action] = []
        if not safe or self._settings.safe_state is SafeState.RESTORE:
            wanted = not safe and any(
                service.profile.sched_idle for service in self._roster.services.values()
            )
            idle = list(self._idle_actions(wanted, now_ns))
        floor = self._channel.limits(self._roster).floor
        for cgroup in best_effort:
            action = self._quota_action(cgroup, floor, reason, now_ns)
            if action is not None:
                quotas.append(action)
        for scope, id_, knob in self._book.held():
            if CgroupId(scope, id_) not in best_effort:
                text = "no longer a best-effort workload"
                action = self._book.restore(scope, id_, knob, text, now_ns)
                if action is not None:
                    quotas.append(action)
        return (*idle, *sorted(quotas, key=_write_order))

    def _safe_grants(self) -> dict[CgroupId, float]:
        if self._settings.safe_state is not SafeState.FLOOR:
            return {}
        floor = self._channel.limits(self._roster).floor
        return dict.fromkeys(self._roster.best_effort, floor)

    def _idle_actions(self, wanted: bool, now_ns: int) -> Iterator[Action]:
        on = self._idle.update(wanted, now_ns) and not self._channel.safe
        for scope, id_ in self._roster.best_effort:
            if on:
                text = "a latency-sensitive service is present: sched-idle for best-effort"
                action = self._book.request(scope, id_, Knob.SCHED_IDLE, _IDLE, text, now_ns)
            else:
                text = "no service needs sched-idle: the old weight is back"
                action = self._book.restore(scope, id_, Knob.SCHED_IDLE, text, now_ns)
            if action is not None:
                yield action

    def _quota_action(
        self, cgroup: CgroupId, floor: float, reason: str, now_ns: int
    ) -> Action | None:
        scope, id_ = cgroup
        cpus = self._grants.get(cgroup)
        original = self._book.original(scope, id_, Knob.CPU_QUOTA)
        current = self._book.value(scope, id_, Knob.CPU_QUOTA)
        if original is None or current is None:
            return None
        allowed = parse_quota(original).cpus
        quota = None if cpus is None else quota_for(cpus)
        if quota is None or (allowed is not None and (quota.cpus or 0.0) >= allowed):
            return self._book.restore(scope, id_, Knob.CPU_QUOTA, reason, now_ns)
        now = parse_quota(current).cpus
        if now is not None and cpus is not None and current != original:
            at_stop = cpus <= floor < now
            if abs(cpus - now) < _QUANTUM * now and not at_stop:
                return None
        return self._book.request(scope, id_, Knob.CPU_QUOTA, format_quota(quota), reason, now_ns)


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
