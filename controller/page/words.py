# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Words of decisions for people: states, evictions, and loops with their numbers.

docs/OPERATIONS.md defines the words for the names that programs read.
"""

from collections.abc import Mapping

from controller.core.decision import ChannelState, Eviction, LoopReport, Plan
from controller.core.explain import compare, format_value
from controller.core.model import Channel
from controller.core.units import format_bytes, format_cpus

__all__ = ("describe_loop", "explain_eviction", "selected", "state_words")

_STATES: Mapping[str, str] = {
    ChannelState.SELF: "own limit",
    ChannelState.STEAL: "host",
    ChannelState.NOT_BE: "other cause",
    ChannelState.HOLD: "no data",
    ChannelState.SAFE: "safe state",
    "other": "other service",
}


def state_words(state: str) -> str:
    """Return what people read for the state of a channel; as it is, if it is a plain word."""
    return _STATES.get(state, state)


def explain_eviction(eviction: Eviction, plan: Plan, *, named: bool = True) -> str:
    """Return which service suffers, by how much, and what the victim contributed.

    Without a service: why the node needs it. *plan* is the one that holds the eviction. If not
    *named*, neither the service nor its numbers appear, for readers that may not know of it.
    """
    if not eviction.service:
        return f"{eviction.reason}: {_contribution(eviction)}"
    if not named:
        return (
            f"a service of another namespace suffers on {eviction.channel}, and {eviction.name} "
            f"contributed most: {_contribution(eviction)}"
        )
    loop = selected(plan, eviction.channel)
    text = f"{eviction.reason}: {_contribution(eviction)}"
    if loop is None or loop.service != eviction.service:
        return text
    return f"{text}; {describe_loop(loop)}"


def describe_loop(loop: LoopReport) -> str:
    """Return an indicator's value against its sweet point."""
    if loop.value is None or loop.sweet_point is None:
        return compare(loop)
    value, sweet_point = format_value(loop, loop.value), format_value(loop, loop.sweet_point)
    times = f" ({loop.value / loop.sweet_point:.1f} times)" if loop.sweet_point > 0 else ""
    return f"{loop.service} {loop.indicator} {value}, its sweet point is {sweet_point}{times}"


def selected(plan: Plan, channel: Channel) -> LoopReport | None:
    """Return the report of the loop that decided the demand of *channel*."""
    return next((each for each in plan.loops if each.selected and each.channel is channel), None)


def _contribution(eviction: Eviction) -> str:
    amount = eviction.blame
    if eviction.channel is Channel.CPU:
        return f"it made latency-sensitive work wait for {format_cpus(amount)}"
    if eviction.channel is Channel.MEMORY:
        return f"it has {format_bytes(amount)} of memory"
    if eviction.channel is Channel.CACHE:
        # Bytes of memory traffic, or cache misses where the traffic is not measured.
        return f"it uses the shared cache most ({amount:.3g} bytes or misses per second)"
    return f"it transfers {format_bytes(amount)} per second"
