# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Decisions in words: one sentence when a decision changes, with the numbers behind it.

PURE: why somebody has to go, and why others are squeezed, in one sentence with the numbers.
"""

from collections.abc import Sequence

from controller.core.control.channel_loops import Loops
from controller.core.control.cpu_channel import CpuChannel
from controller.core.control.ladder import Scene
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
    "Narrator",
    "explain",
    "pain",
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


class Narrator:
    """Remembers what was said last."""

    __slots__ = ("_cpu", "_ladders")

    def __init__(self) -> None:
        self._cpu: tuple[ChannelState, float | None] = (ChannelState.FREE, None)
        self._ladders: dict[Channel, tuple[ChannelState, dict[Knob, RungReport]]] = {}

    def reason(self, loops: Loops) -> str:
        """Return a short reason for the actions of this tick on one channel."""
        demand = loops.demand
        loop = loops.selected
        if loop is None:
            return f"{demand.channel} channel {demand.state}"
        return f"{_pain(loop)}: demand {demand.applied:.2f}"

    def tell(
        self,
        cpu: CpuChannel,
        ladders: Sequence[LadderChannel],
        scene: Scene,
        workloads: Sequence[Workload],
    ) -> tuple[Verdict, ...]:
        """Return the verdicts of this tick; mostly none."""
        cache = next((each for each in ladders if each.channel is Channel.CACHE), None)
        loop = cpu.loops.selected or (cache.loops.selected if cache else None)
        verdicts = self._tell_cpu(cpu, loop, scene, workloads)
        for channel in ladders:
            verdicts.extend(self._tell_ladder(channel, scene))
        return tuple(verdicts)

    def _tell_cpu(
        self,
        channel: CpuChannel,
        loop: LoopReport | None,
        scene: Scene,
        workloads: Sequence[Workload],
    ) -> list[Verdict]:
        demand, total = channel.loops.demand, channel.rung.total
        said, before = self._cpu
        if demand.state is said and not _moved(before, total):
            return []
        self._cpu = (demand.state, total)
        pain = _pain(loop) if loop else "no service present"
        caused = scene.senses.blame.share(demand.service or "")
        text = pain if caused is None else f"{pain}, best-effort caused {caused:.0%} of its wait"
        text += f": {_excuse(demand.state) or _quota(before, total)}"
        if total is not None:
            text += _payers(channel, scene, workloads)
        return [Verdict(subject=demand.service or "cpu", text=text)]

    def _tell_ladder(self, channel: LadderChannel, scene: Scene) -> list[Verdict]:
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
        text = _pain(loop) if loop else "no service hurts"
        share = scene.usage.share(channel.channel, scene.senses, scene.roster)
        if share is not None:
            text += f", best-effort has {share:.0%} of the {_RESOURCES[channel.channel]}"
        moves = [
            f"{report.setting} (was {old.setting})" if old else report.setting
            for old, report in changed
        ]
        nothing = "best-effort is free" if channel.ladder.usable else "there is no knob to move"
        text += f": {_excuse(demand.state) or ', '.join(moves) or nothing}"
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


def _pain(loop: LoopReport) -> str:
    if loop.value is None:
        return f"{loop.service} {loop.indicator} {loop.status}"
    sign = ">" if loop.value > loop.sweet_point else "<="
    return (
        f"{loop.service} {loop.indicator} {_number(loop, loop.value)} {sign} "
        f"{_number(loop, loop.sweet_point)}"
    )


def _number(loop: LoopReport, value: float) -> str:
    return format_duration(value) if loop.is_time else f"{value:.3g}"


def _excuse(state: ChannelState) -> str | None:
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


def _payers(channel: CpuChannel, scene: Scene, workloads: Sequence[Workload]) -> str:
    grants = channel.rung.grants
    if not grants:
        return ""
    names = {workload.cgroup: workload.name for workload in workloads}
    culprits = scene.senses.blame.culprits
    worst = max(grants, key=lambda cgroup: culprits.get(cgroup, 0.0))
    text = f", {names.get(worst, worst.id)} gets {format_cpus(grants[worst])}"
    return text if len(grants) == 1 else f"{text} ({len(grants)} workloads limited)"


def explain(eviction: Eviction, plan: Plan) -> str:
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
    said = "" if loop is None else f"; {pain(loop)}"
    return f"{eviction.reason}: {_deed(eviction)}{said}"


def pain(loop: LoopReport) -> str:
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


def _deed(eviction: Eviction) -> str:
    # In the unit in which the channel attributes.
    amount = eviction.blame
    if eviction.channel is Channel.CPU:
        return f"it made latency-sensitive work wait for {format_cpus(amount)}"
    if eviction.channel is Channel.MEMORY:
        return f"it has {format_bytes(amount)} of memory"
    if eviction.channel is Channel.CACHE:
        return f"it uses most of the shared cache ({amount:.3g} a second)"
    return f"it moves {format_bytes(amount)} a second"
