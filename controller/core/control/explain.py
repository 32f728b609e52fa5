# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Decisions in words: one sentence when a decision changes, with the numbers behind it.

PURE: why somebody has to go, and why others are squeezed, in one sentence with the numbers.
"""

from collections.abc import Sequence

from controller.core.control.channel_loops import ChannelLoops
from controller.core.control.cpu_channel import CpuChannel
from controller.core.control.ladder import TickContext
from controller.core.control.ladder_channel import LadderChannel
from controller.core.decision import (
    ChannelState,
    Demand,
    Eviction,
    LoopReport,
    Plan,
    RungReport,
    Verdict,
)
from controller.core.model import Channel, Knob, Workload
from controller.core.units import format_bytes, format_cpus, format_duration

__all__ = (
    "DecisionLog",
    "describe_loop",
    "explain_eviction",
    "selected",
)

# A total that moved by less than this since it was last told is the same decision.
_WORTH_TELLING = 0.2
# The same for a rung that moves freely; a setting of its own, for one with few settings, is
# further away than that.
_WORTH_TELLING_PART = 0.05

_RESOURCES = {
    Channel.CACHE: "memory traffic",
    Channel.NETWORK: "network traffic",
    Channel.MEMORY: "memory",
    Channel.IO: "disk traffic",
}


class DecisionLog:
    """Remembers what was said last."""

    __slots__ = ("_cpu", "_ladders")

    def __init__(self) -> None:
        self._cpu: tuple[ChannelState, float | None] = (ChannelState.FREE, None)
        self._ladders: dict[Channel, tuple[ChannelState, dict[Knob, RungReport]]] = {}

    def reason(self, loops: ChannelLoops) -> str:
        """Return a short reason for the actions of this tick on one channel."""
        demand = loops.demand
        loop = loops.selected
        if loop is None:
            return f"{demand.channel} channel {demand.state}"
        return f"{_loop_phrase(loop)}: demand {demand.applied:.2f}"

    def update(
        self,
        cpu: CpuChannel,
        ladders: Sequence[LadderChannel],
        context: TickContext,
        workloads: Sequence[Workload],
    ) -> tuple[Verdict, ...]:
        """Return the verdicts of this tick; mostly none."""
        cache = next((each for each in ladders if each.channel is Channel.CACHE), None)
        loop = cpu.loops.selected or (cache.loops.selected if cache else None)
        verdicts = self._describe_cpu(cpu, loop, context, workloads)
        for channel in ladders:
            verdicts.extend(self._describe_ladder(channel, context))
        return tuple(verdicts)

    def _describe_cpu(
        self,
        channel: CpuChannel,
        loop: LoopReport | None,
        context: TickContext,
        workloads: Sequence[Workload],
    ) -> list[Verdict]:
        demand, total = channel.loops.demand, channel.rung.total
        said, before = self._cpu
        if demand.state is said and not _moved(before, total):
            return []
        self._cpu = (demand.state, total)
        state = _loop_phrase(loop) if loop else "no service present"
        caused = context.tracker.blame.share(demand.service or "")
        text = state if caused is None else f"{state}, best-effort caused {caused:.0%} of its wait"
        text += f": {_idle_reason(demand.state) or _quota(before, total)}"
        if total is not None:
            text += _cut_phrase(channel, context, workloads)
        return [Verdict(subject=demand.service or "cpu", text=text)]

    def _describe_ladder(self, channel: LadderChannel, context: TickContext) -> list[Verdict]:
        demand = channel.loops.demand
        reports = {report.knob: report for report in channel.ladder.reports()}
        said, before = self._ladders.get(channel.channel, (ChannelState.FREE, {}))
        changed = [
            (before.get(knob), report)
            for knob, report in reports.items()
            if _stepped(before.get(knob), report)
        ]
        if demand.state is said and not changed:
            return []
        told = {**before, **{report.knob: report for _, report in changed}}
        self._ladders[channel.channel] = (demand.state, told)
        loop = channel.loops.selected
        text = _loop_phrase(loop) if loop else "no service hurts"
        share = context.usage.share(channel.channel, context.tracker, context.workload_index)
        if share is not None:
            text += f", best-effort has {share:.0%} of the {_RESOURCES[channel.channel]}"
        moves = [
            f"{report.setting} (was {old.setting})" if old else report.setting
            for old, report in changed
        ]
        nothing = "best-effort is free" if channel.ladder.usable else "there is no knob to move"
        text += f": {_idle_reason(demand.state) or ', '.join(moves) or nothing}"
        return [Verdict(subject=demand.service or channel.channel, text=text)]


def _moved(before: float | None, total: float | None) -> bool:
    if before is None or total is None:
        return before is not total
    return abs(total - before) > _WORTH_TELLING * before


def _stepped(before: RungReport | None, now: RungReport) -> bool:
    part = before.part if before else 0.0
    if (part > 0) is not (now.part > 0):
        return True
    other = before is None or before.setting != now.setting
    return other and abs(now.part - part) > _WORTH_TELLING_PART


def _loop_phrase(loop: LoopReport) -> str:
    if loop.value is None:
        return f"{loop.service} {loop.indicator} {loop.status}"
    sign = ">" if loop.value > loop.sweet_point else "<="
    return (
        f"{loop.service} {loop.indicator} {_number(loop, loop.value)} {sign} "
        f"{_number(loop, loop.sweet_point)}"
    )


def _number(loop: LoopReport, value: float) -> str:
    return format_duration(value) if loop.is_time else f"{value:.3g}"


def _idle_reason(state: ChannelState) -> str | None:
    """Return why nobody is squeezed, ``None`` if the loops decide."""
    if state is ChannelState.SAFE:
        return "no data, safe state"
    if state is ChannelState.HOLD:
        return "no data, holding"
    if state in (ChannelState.SELF, ChannelState.STEAL, ChannelState.NOT_BE):
        why = {
            ChannelState.SELF: "the service was throttled by its own quota",
            ChannelState.STEAL: "the host takes CPU time away",
            ChannelState.NOT_BE: "not caused by best-effort",
        }[state]
        return f"{why}, nobody is squeezed for it"
    return None


def _quota(before: float | None, total: float | None) -> str:
    if total is None:
        return "best-effort is free"
    old = "free" if before is None else format_cpus(before)
    return f"best-effort quota {old} -> {format_cpus(total)}"


def _cut_phrase(channel: CpuChannel, context: TickContext, workloads: Sequence[Workload]) -> str:
    grants = channel.rung.grants
    if not grants:
        return ""
    names = {workload.cgroup: workload.name for workload in workloads}
    culprits = context.tracker.blame.culprits
    worst = max(grants, key=lambda cgroup: culprits.get(cgroup, 0.0))
    text = f", {names.get(worst, worst.id)} gets {format_cpus(grants[worst])}"
    return text if len(grants) == 1 else f"{text} ({len(grants)} workloads limited)"


def explain_eviction(eviction: Eviction, plan: Plan) -> str:
    """Return which service suffers, by how much, and what the workload does to it.

    *plan* is the one that holds the eviction.
    """
    loop = next(
        (
            each
            for each in plan.loops
            if each.selected
            and each.channel is eviction.channel
            and each.service == eviction.service
        ),
        None,
    )
    said = "" if loop is None else f"; {describe_loop(loop)}"
    return f"{eviction.reason}: {_action_phrase(eviction)}{said}"


def describe_loop(loop: LoopReport) -> str:
    """Return an indicator's value against its sweet point."""
    if loop.value is None:
        return f"{loop.service} {loop.indicator} {loop.status}"
    value, sweet_point = (_number(loop, each) for each in (loop.value, loop.sweet_point))
    times = f" ({loop.value / loop.sweet_point:.1f} times)" if loop.sweet_point > 0 else ""
    return f"{loop.service} {loop.indicator} {value}, its sweet point is {sweet_point}{times}"


def selected(plan: Plan, demand: Demand) -> LoopReport | None:
    """Return the loop that a channel's demand comes from."""
    found = (each for each in plan.loops if each.selected and each.channel is demand.channel)
    return next(found, None)


def _action_phrase(eviction: Eviction) -> str:
    # In the unit in which the channel attributes.
    amount = eviction.blame
    if eviction.channel is Channel.CPU:
        return f"it made latency-sensitive work wait for {format_cpus(amount)}"
    if eviction.channel is Channel.MEMORY:
        return f"it has {format_bytes(amount)} of memory"
    if eviction.channel is Channel.CACHE:
        return f"it uses most of the shared cache ({amount:.3g} a second)"
    return f"it moves {format_bytes(amount)} a second"
