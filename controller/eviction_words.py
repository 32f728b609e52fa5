# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""PURE: why somebody has to go, and why others are squeezed, in one sentence with the numbers."""

from controller.decision import Demand, Eviction, LoopReport, Plan
from controller.model import Channel
from controller.units import format_bytes, format_cpus, format_duration

__all__ = ("explain", "pain", "selected")


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


def _number(loop: LoopReport, value: float) -> str:
    return format_duration(value) if loop.is_time else f"{value:.3g}"
