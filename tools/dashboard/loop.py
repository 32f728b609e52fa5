# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The loop: services against their sweet points, and what each channel demands."""

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from tools.dashboard.panels import (
    NODE,
    SERVICE,
    coded,
    equal,
    graph,
    rate,
    series,
    stat,
    states,
    worst_first,
)

__all__ = ("demand", "glance", "services")

# What got no answer may have been done.
_EVICTED = 'result=~"evicted|frozen|killed|unanswered"'
_TIMES = 'indicator=~"runq_.*|net_backlog"'
_RATIOS = 'indicator=~"wait_ratio|psi_.*|net_drops"'
_OTHERS = 'indicator!~"runq_.*|net_backlog|wait_ratio|psi_.*|net_drops"'
_LOOP = "{{instance}} {{service}} {{indicator}}"
_CHANNEL = "{{instance}} {{channel}}"
_BY_LOOP = f"max by ({NODE}, service, indicator, channel)"

_STATUS = (("off", "#8e8e8e"), ("fresh", "green"), ("idle", "blue"), ("stale", "red"))
_STATE = (
    ("free", "green"),
    ("squeeze", "orange"),
    ("hold", "yellow"),
    ("safe", "red"),
    ("self", "blue"),
    ("steal", "purple"),
    ("not-be", "#8e8e8e"),
)


def glance() -> list[Builder[Panel]]:
    """What to look at first."""
    return [
        stat(
            "Agents",
            "Agents that Prometheus reaches. Fewer than nodes: see the alert SweetpointAgentDown.",
            "none",
            f"count({series('mode')}) or vector(0)",
        ),
        stat(
            "Enforcing",
            "Agents that write knobs; the others only observe and say what they would do.",
            "none",
            f"count({series('mode', equal('mode', 'enforce'))}) or vector(0)",
        ),
        stat(
            "Services over their sweet point",
            "Services, node by node, that suffer more than they should at this moment. Now and "
            "then one is normal: that is what the loop works on.",
            "none",
            f"count(max by ({NODE}, service) ({series('loop_deviation', SERVICE)}) > 0.1) "
            "or vector(0)",
            limit=(1, 10),
        ),
        stat(
            "Best-effort work",
            "CPUs that best-effort work uses now.",
            "none",
            _class_cpus("best-effort") + " or vector(0)",
        ),
        stat(
            "Channels at their stop",
            "Channels in which best-effort work cannot be squeezed any further.",
            "none",
            f"count({series('channel_demand_ratio')} > 0.99) or vector(0)",
            limit=(1, 3),
        ),
        stat(
            "Evictions in an hour",
            "Best-effort pods evicted in the last hour, because squeezing was not enough, or asked "
            "to go without an answer; on plain hosts, workloads frozen or killed.",
            "none",
            f"sum(increase({series('evictions_total', _EVICTED)}[1h])) or vector(0)",
            limit=(1, 5),
        ),
        stat(
            "Nodes in the safe state",
            "Nodes whose agent has no data that it could act on.",
            "none",
            f"sum({series('safe_state')}) or vector(0)",
            limit=(1,),
        ),
        stat(
            "Alerts",
            "Alerts of sweetpoint that fire now. docs/RUNBOOK.md says what to do for each.",
            "none",
            'count(ALERTS{alertname=~"Sweet[pP]oint.*",alertstate="firing"}) or vector(0)',
            limit=(1, 3),
        ),
    ]


def _class_cpus(qos: str) -> str:
    return (
        f"sum({rate('workload_oncpu_seconds_total')} * on ({NODE}, workload) "
        f"group_left () {series('workload_info', equal('class', qos))})"
    )


def services() -> list[Builder[Panel]]:
    """Value, sweet point and deviation of every service."""
    return [
        worst_first(
            "Services now, the worst first",
            "Deviation 0 is on the sweet point, 1 is at the tolerance, below 0 is well. Value and "
            "sweet point are seconds for runq_* and net_backlog, shares for wait_ratio, psi_* and "
            "net_drops, otherwise as the profile has them.",
            (
                ("deviation", "none", f"{_BY_LOOP} ({series('loop_deviation', SERVICE)})"),
                ("value", "none", f"{_BY_LOOP} ({series('indicator_value', SERVICE)})"),
                ("sweet point", "none", f"{_BY_LOOP} ({series('indicator_sweet_point', SERVICE)})"),
            ),
        ),
        _against("Latencies", "Times that tasks or packets wait", "s", _TIMES),
        _against("Shares", "Shares of time in which a service waits", "percentunit", _RATIOS),
        _against(
            "Other indicators",
            "Cycles per instruction, cache misses, network rates and the services' own figures",
            "short",
            _OTHERS,
        ),
        graph(
            "Deviation from the sweet point",
            "All indicators on one scale: 0 on the sweet point, 1 (orange) at the tolerance that "
            "the profile allows, 2 the most that is shown. The loop holds it at 0 by squeezing "
            "best-effort work; above 0.5 for long is the alert SweetPointMissed.",
            "none",
            (series("loop_deviation", SERVICE), _LOOP),
            bounds=(-1, 2),
            limit=(1, 2),
        ),
        states(
            "Are the indicators alive?",
            "fresh: measured. idle: the service hardly ran, so nothing can hurt it. stale: its "
            "source is dead, the safe state follows. off: it never had a source on this node.",
            (
                coded("indicator_status", "status", _STATUS, "service, indicator"),
                _LOOP,
            ),
            _STATUS,
        ),
        graph(
            "Services' own figures",
            "What a service says of itself (request latency), where its source gives a time.",
            "s",
            (series("service_level_seconds", SERVICE), "{{instance}} {{service}} {{source}}"),
        ),
    ]


def _against(title: str, text: str, unit: str, indicators: str) -> Builder[Panel]:
    return graph(
        title,
        f"{text} (lines), and what they should not exceed (dashed).",
        unit,
        (series("indicator_value", SERVICE, indicators), _LOOP),
        (series("indicator_sweet_point", SERVICE, indicators), f"{_LOOP} sweet point"),
        dashed="/ sweet point$/",
    )


def demand() -> list[Builder[Panel]]:
    """How hard best-effort work is squeezed on each channel, and why not."""
    return [
        graph(
            "Demand by channel",
            "0: best-effort work is free. 100 %: every knob of the channel is at its stop. Dashed: "
            "what the loops ask for; the line follows at once upwards and in steps downwards.",
            "percentunit",
            (series("channel_demand_ratio"), _CHANNEL),
            (series("channel_demand_wanted_ratio"), f"{_CHANNEL} wanted"),
            bounds=(0, 1),
            dashed="/ wanted$/",
        ),
        states(
            "State of the channels",
            "squeeze: best-effort work is held back. self: the service was throttled by its own "
            "quota. steal: the host takes CPU time away. not-be: best-effort work is not the "
            "cause. In these three nobody is squeezed. hold, safe: data is missing.",
            (coded("channel_state", "state", _STATE, "channel"), _CHANNEL),
            _STATE,
        ),
        graph(
            "The loop that each channel follows",
            "Demand of the loop that is selected: the service and the indicator for which "
            "best-effort work is squeezed now.",
            "percentunit",
            (
                f"{series('loop_demand_ratio', SERVICE)} and {series('loop_selected')} == 1",
                "{{instance}} {{channel}}: {{service}} {{indicator}}",
            ),
            bounds=(0, 1),
        ),
        graph(
            "Demand of every loop",
            "What each service asks for by itself; the largest one wins.",
            "percentunit",
            (series("loop_demand_ratio", SERVICE), _LOOP),
            bounds=(0, 1),
        ),
    ]
