# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Decisions in words, with the numbers behind them.

``DecisionLog`` makes the log lines, one sentence for each change of a decision, and ``reason_of``
the reasons of actions. ``page/words.py`` has the texts of evictions and Events.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from controller.core.channels.cpu_channel import CpuChannel
from controller.core.channels.ladder import TickContext
from controller.core.channels.ladder_channel import LadderChannel
from controller.core.decision import (
    Action,
    Cause,
    ChannelState,
    Demand,
    LoopReport,
    Part,
    PartKind,
    RungReport,
    Verdict,
)
from controller.core.in_force import InForce
from controller.core.limiters import NEAR
from controller.core.loop.channel_loops import ChannelLoops
from controller.core.model import CgroupId, Channel, Knob, Pause
from controller.core.units import NS_PER_SEC, format_cpus, format_duration

__all__ = ("DecisionLog", "compare", "describe_part", "describe_pause", "format_value", "reason_of")

# A total within this part of the one that was logged last is the same decision.
_SAME_TOTAL = 0.2
# A squeeze moves in each tick; so often its amount is told while its state stays.
_TELL_NS = 5 * NS_PER_SEC

_RESOURCES = {
    Channel.CACHE: "memory traffic",
    Channel.NETWORK: "network traffic",
    Channel.MEMORY: "memory",
    Channel.IO: "disk traffic",
}
# Why a channel does not squeeze further although a service suffers or has no data. What it took
# before is given back over time, and another channel may still take it.
_INHIBITED = {
    ChannelState.SAFE: "no data, safe state",
    ChannelState.HOLD: "no data, the demand is held",
    ChannelState.SELF: "the service was held back by its own limit",
    ChannelState.STEAL: "the host takes CPU time away",
    ChannelState.NOT_BE: "not caused by best-effort",
    ChannelState.PAUSED: "the service is paused",
}


@dataclass(slots=True)
class DecisionLog:
    """Makes a verdict when a decision of a channel changed; keeps the state that was logged last.

    A line says what is in force as it was read back, so a limit is told in the tick after its
    write. A new state of a channel that moves knobs waits for that. A small move of a total or of a
    rung is no change, see ``_SAME_TOTAL`` and ``NEAR``, and moves are told every 5 s at most.
    """

    _cpu: tuple[ChannelState, float | None] = (ChannelState.FREE, None)
    _ladders: dict[Channel, tuple[ChannelState, dict[Knob, RungReport]]] = field(
        default_factory=dict
    )
    _would: str = ""
    # When the last line about each channel was written.
    _told_ns: dict[Channel, int] = field(default_factory=dict)
    # As of the last tick.
    _states: dict[Channel, ChannelState] = field(default_factory=dict)

    def update(
        self,
        cpu: CpuChannel,
        ladders: Sequence[LadderChannel],
        context: TickContext,
        in_force: InForce,
        actions: Sequence[Action],
        causes: Sequence[Cause],
        *,
        executed: bool,
    ) -> tuple[Verdict, ...]:
        """Return the verdicts of this tick; in most ticks there are none.

        *in_force* is the record before the *actions* of this tick, *causes* are its causes. Not
        *executed*: nothing is written, and the lines say so.
        """
        self._would = "" if executed else "if the agent enforced: "
        cache = next((each for each in ladders if each.channel is Channel.CACHE), None)
        loop = cpu.loops.selected or (cache.loops.selected if cache else None)
        moved = {each.knob for each in actions}
        verdicts = []
        if not self._waits(cpu.loops.demand, moved & {Knob.CPU_QUOTA}):
            verdicts += self._describe_cpu(cpu, loop, context, in_force, causes)
        for channel in ladders:
            knobs = moved & {rung.knob for rung in channel.ladder.rungs}
            if not self._waits(channel.loops.demand, knobs):
                verdicts += self._describe_ladder(channel, context, in_force)
        return tuple(verdicts)

    def _waits(self, demand: Demand, moved: Set[Knob]) -> bool:
        """Whether the state is new and what it moves is not read back yet."""
        before = self._states.get(demand.channel, ChannelState.FREE)
        self._states[demand.channel] = demand.state
        return demand.state is not before and bool(moved)

    def _may_tell(self, channel: Channel, context: TickContext) -> bool:
        return context.now_ns - self._told_ns.get(channel, -_TELL_NS) >= _TELL_NS

    def _describe_cpu(
        self,
        channel: CpuChannel,
        loop: LoopReport | None,
        context: TickContext,
        in_force: InForce,
        causes: Sequence[Cause],
    ) -> list[Verdict]:
        demand, total = channel.loops.demand, in_force.cpus
        state, before = self._cpu
        moved = _total_changed(before, total) and self._may_tell(Channel.CPU, context)
        if demand.state is state and not moved:
            return []
        self._told_ns[Channel.CPU] = context.now_ns
        self._cpu = (demand.state, total)
        text = compare(loop) if loop else "no latency-sensitive service is present"
        caused = context.tracker.blame.share(demand.service or "")
        if caused is not None:
            text += f", best-effort caused {caused:.0%} of its wait"
            text += _other_culprit(demand, causes)
        text += f"; {self._would}{_with_reason(channel.loops, _quota(before, in_force))}"
        if total is not None:
            culprits = context.tracker.blame.blame_for(demand.service or "")
            text += _largest_cut(in_force, culprits)
        return [Verdict(subject=demand.service or "cpu", text=text)]

    def _describe_ladder(
        self, channel: LadderChannel, context: TickContext, in_force: InForce
    ) -> list[Verdict]:
        demand = channel.loops.demand
        reports = dict(_in_force(channel, in_force))
        state, before = self._ladders.get(channel.channel, (ChannelState.FREE, {}))
        changed = [
            (before.get(knob), report)
            for knob, report in reports.items()
            if _rung_changed(before.get(knob), report)
        ]
        known = {each.knob for each in in_force.knobs} | reports.keys()
        lost = [knob for knob, report in before.items() if report.part > 0 and knob not in known]
        moved = bool(changed or lost) and self._may_tell(channel.channel, context)
        if demand.state is state and not moved:
            return []
        self._told_ns[channel.channel] = context.now_ns
        logged = before | {report.knob: report for _, report in changed}
        for knob in lost:
            del logged[knob]
        self._ladders[channel.channel] = (demand.state, logged)
        loop = channel.loops.selected
        text = compare(loop) if loop else "no service suffers"
        share = context.usage.share(channel.channel, context.tracker, context.workload_index)
        if share is not None:
            resource = _RESOURCES[channel.channel]
            if not context.usage.is_measured(channel.channel):
                resource = f"CPU time ({resource} is not measured here)"
            text += f", best-effort has {share:.0%} of the {resource}"
        settings = [
            f"{report.setting} (was {old.setting})" if old else report.setting
            for old, report in changed
        ]
        settings += [f"{knob} is not in force any more" for knob in lost]
        what = ", ".join(settings) or _unchanged(channel, reports, in_force)
        text += f"; {self._would}{_with_reason(channel.loops, what)}"
        return [Verdict(subject=demand.service or channel.channel, text=text)]


def _other_culprit(demand: Demand, causes: Sequence[Cause]) -> str:
    """Return what hurts a service most if that is not best-effort work."""
    key = demand.channel, demand.service
    cause = next((each for each in causes if (each.channel, each.service) == key), None)
    if cause is None or not cause.parts or cause.parts[0].kind is PartKind.BEST_EFFORT:
        return ""
    return f", most of it {describe_part(cause.parts[0])}"


def describe_part(part: Part) -> str:
    """Return what hurts a service: ``outside /system.slice/backup.service 62%``."""
    kinds = {PartKind.SELF: "its own tasks", PartKind.BEST_EFFORT: ""}
    what = kinds.get(part.kind, str(part.kind))
    return f"{' '.join(filter(None, (what, part.name)))} {part.share:.0%}"


def _in_force(channel: LadderChannel, in_force: InForce) -> Iterator[tuple[Knob, RungReport]]:
    """Yield the rungs of *channel* whose setting is in force: taken and held, or free and not."""
    held = {each.knob for each in in_force.limits}
    asked = {each.knob for each in in_force.of_channel(channel.channel) if each.service}
    for report in channel.ladder.reports():
        if report.knob in held if report.part > 0 else report.knob not in asked:
            yield report.knob, report


def reason_of(loops: ChannelLoops) -> str:
    """Return a short reason for the actions of this tick on one channel."""
    demand = loops.demand
    loop = loops.selected
    if loop is None:
        return f"{demand.channel} channel: {demand.state}"
    return f"{compare(loop)}: demand {demand.applied:.2f}"


def describe_pause(pause: Pause | None) -> str:
    """Return what *pause* covers and what that means; ``None``: the last one ended."""
    if pause is None:
        return "ended: services are protected again"
    if pause.everything:
        return "everything: every knob is restored, no service is protected, nothing is evicted"
    parts = [
        f"{kind}{'' if len(names) == 1 else 's'} {', '.join(names)}"
        for kind, names in (("service", pause.services), ("workload", pause.workloads))
        if names
    ]
    whose = "its" if len(pause.services) + len(pause.workloads) == 1 else "their"
    return f"{' and '.join(parts)}: {whose} knobs are restored"


def _with_reason(loops: ChannelLoops, in_force: str) -> str:
    """Return what is in force, after the reason why nothing more is taken, if there is one."""
    reason = _INHIBITED.get(loops.demand.state)
    if loops.of(loops.demand.service).was_in_vain:
        # Best-effort work may have the largest part of the evidence all the same.
        reason = "a squeeze did not help"
    return in_force if reason is None else f"{reason}; {in_force}"


def _unchanged(
    channel: LadderChannel, reports: Mapping[Knob, RungReport], in_force: InForce
) -> str:
    if not channel.ladder.usable:
        return "no knob can be moved"
    settings = [each.setting for each in reports.values() if each.part > 0]
    if settings:
        return f"{', '.join(settings)} as before"
    if in_force.limited:
        return "no knob of this channel is in force"
    return "best-effort is not limited"


def _total_changed(before: float | None, total: float | None) -> bool:
    if before is None or total is None:
        return before is not total
    return abs(total - before) > _SAME_TOTAL * before


def _rung_changed(before: RungReport | None, now: RungReport) -> bool:
    part = before.part if before else 0.0
    if (part > 0) is not (now.part > 0):
        return True
    # The settings of a rung that has few of them are further apart.
    other = before is None or before.setting != now.setting
    return other and abs(now.part - part) > NEAR


def compare(loop: LoopReport) -> str:
    """Return an indicator's value against its sweet point: ``web runq_p99 12ms > 3ms``."""
    if loop.value is None:
        return f"{loop.service} {loop.indicator} {loop.status}"
    if loop.sweet_point is None:
        return (
            f"{loop.service} {loop.indicator} {format_value(loop, loop.value)}, no sweet point yet"
        )
    sign = ">" if loop.value > loop.sweet_point else "<="
    value, sweet_point = format_value(loop, loop.value), format_value(loop, loop.sweet_point)
    return f"{loop.service} {loop.indicator} {value} {sign} {sweet_point}"


def format_value(loop: LoopReport, value: float) -> str:
    """Return *value*, of the indicator of *loop* or its sweet point, with its unit."""
    return format_duration(value) if loop.is_time else f"{value:.3g}"


def _quota(before: float | None, in_force: InForce) -> str:
    total = in_force.cpus
    if total is None:
        return "best-effort has no quota" if in_force.limited else "best-effort is not limited"
    if _is_as_before(before, total):
        return f"best-effort quota {format_cpus(total)} as before"
    old = "unlimited" if before is None else format_cpus(before)
    return f"best-effort quota {old} -> {format_cpus(total)}"


def _is_as_before(before: float | None, total: float) -> bool:
    return before is not None and format_cpus(before) == format_cpus(total)


def _largest_cut(in_force: InForce, culprits: Mapping[CgroupId, float]) -> str:
    limited = [each for each in in_force.limited if each.cpus is not None]
    worst = max(limited, key=lambda each: culprits.get(each.workload.cgroup, 0.0))
    text = f", {worst.workload.name} gets {format_cpus(worst.cpus or 0.0)}"
    return text if len(limited) == 1 else f"{text} ({len(limited)} workloads limited)"
