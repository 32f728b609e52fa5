# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Decisions in words: one sentence when a decision changes, with the numbers behind it."""

from collections.abc import Sequence

from controller.control.cpu import CpuChannel
from controller.indicators.senses import Senses
from controller.model import (
    RUNQ_LATENCIES,
    ChannelState,
    Demand,
    LoopReport,
    Verdict,
    Workload,
)
from controller.units import format_cpus, format_duration

__all__ = ("Narrator",)

# A total that moved by less than this since it was last told is the same decision.
_WORTH_TELLING = 0.2


class Narrator:
    """Remembers what was said last."""

    __slots__ = ("_state", "_total")

    def __init__(self) -> None:
        self._state = ChannelState.FREE
        self._total: float | None = None

    def reason(self, channel: CpuChannel) -> str:
        """Return a short reason for the actions of this tick."""
        demand = channel.demand
        loop = _selected(channel)
        if loop is None:
            return f"cpu channel {demand.state}"
        return f"{_pain(loop)}: demand {demand.applied:.2f}"

    def tell(
        self, channel: CpuChannel, senses: Senses, workloads: Sequence[Workload]
    ) -> tuple[Verdict, ...]:
        """Return the verdicts of this tick; mostly none."""
        demand, total = channel.demand, channel.rung.total
        if not self._changed(demand, total):
            return ()
        before, self._state, self._total = self._total, demand.state, total
        loop = _selected(channel)
        pain = _pain(loop) if loop else "no service present"
        share = senses.blame.shares.get(demand.service or "")
        caused = share.ratio if share else None
        text = pain if caused is None else f"{pain}, best-effort caused {caused:.0%} of its wait"
        text += f": {_decision(demand.state, before, total)}"
        if total is not None:
            text += _payers(channel, senses, workloads)
        return (Verdict(subject=demand.service or "cpu", text=text),)

    def _changed(self, demand: Demand, total: float | None) -> bool:
        if demand.state is not self._state or (total is None) != (self._total is None):
            return True
        if total is None or self._total is None:
            return False
        return abs(total - self._total) > _WORTH_TELLING * self._total


def _selected(channel: CpuChannel) -> LoopReport | None:
    return next((report for report in channel.reports if report.selected), None)


def _pain(loop: LoopReport) -> str:
    if loop.value is None:
        return f"{loop.service} {loop.indicator} {loop.status}"
    sign = ">" if loop.value > loop.sweet_point else "<="
    return (
        f"{loop.service} {loop.indicator} {_number(loop, loop.value)} {sign} "
        f"{_number(loop, loop.sweet_point)}"
    )


def _number(loop: LoopReport, value: float) -> str:
    return format_duration(value) if loop.indicator in RUNQ_LATENCIES else f"{value:.3g}"


def _decision(state: ChannelState, before: float | None, total: float | None) -> str:
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
    if total is None:
        return "best-effort is free"
    old = "free" if before is None else format_cpus(before)
    return f"best-effort quota {old} -> {format_cpus(total)}"


def _payers(channel: CpuChannel, senses: Senses, workloads: Sequence[Workload]) -> str:
    grants = channel.rung.grants
    if not grants:
        return ""
    names = {workload.cgroup: workload.name for workload in workloads}
    worst = max(grants, key=lambda cgroup: senses.blame.culprits.get(cgroup, 0.0))
    text = f", {names.get(worst, worst.id)} gets {format_cpus(grants[worst])}"
    return text if len(grants) == 1 else f"{text} ({len(grants)} workloads limited)"
