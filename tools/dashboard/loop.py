# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Panels of the control loop: overview, services and sweet points, demand by channel."""

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from controller.page.words import state_words
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

# An unanswered eviction may have been executed.
_EVICTED = 'result=~"evicted|frozen|killed|unanswered"'
_TIMES = 'indicator=~"runq_.*|net_backlog"'
_RATIOS = 'indicator=~"wait_ratio|psi_.*|net_drops"'
_OTHERS = 'indicator!~"runq_.*|net_backlog|wait_ratio|psi_.*|net_drops"'
_LOOP = "{{instance}} {{service}} {{indicator}}"
_CHANNEL = "{{instance}} {{channel}}"
_BY_LOOP = f"max by ({NODE}, service, indicator, channel)"

_STATUS = (
    ("off", "#8e8e8e"),
    ("fresh", "green"),
    ("idle", "blue"),
    ("stale", "red"),
    ("lost", "orange"),
)
_STATE = (
    ("free", "green"),
    ("squeeze", "orange"),
    ("hold", "yellow"),
    ("safe", "red"),
    ("self", "blue"),
    ("steal", "purple"),
    ("not-be", "#8e8e8e"),
    ("paused", "#5794f2"),
)


def glance() -> list[Builder[Panel]]:
    """Return the overview: single numbers over all selected nodes."""
    return [
        stat(
            "Agents",
            "Agents that Prometheus scrapes. If fewer than nodes: see the alert "
            "SweetpointAgentDown.",
            "none",
            f"count({series('mode')}) or vector(0)",
        ),
        stat(
            "Enforcing",
            "Agents that write knobs; the others observe and only report what they would write.",
            "none",
            f"count({series('mode', equal('mode', 'enforce'))}) or vector(0)",
        ),
        stat(
            "Services over their sweet point",
            "Services, counted per node, that are above their sweet point now. Single services are "
            "above it from time to time; the loop then squeezes best-effort work.",
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
            "Channels at full squeeze",
            "Channels in which best-effort work cannot be squeezed any further.",
            "none",
            f"count({series('channel_demand_ratio')} > 0.99) or vector(0)",
            limit=(1, 3),
        ),
        stat(
            "Evictions in an hour",
            "Best-effort pods evicted in the last hour because squeezing was not enough, with "
            "requests that got no answer; without Kubernetes, workloads frozen or killed.",
            "none",
            f"sum(increase({series('evictions_total', _EVICTED)}[1h])) or vector(0)",
            limit=(1, 5),
        ),
        stat(
            "Nodes in the safe state",
            "Nodes whose agent has no data to act on.",
            "none",
            f"sum({series('safe_state')}) or vector(0)",
            limit=(1,),
        ),
        stat(
            "Alerts",
            "Alerts of sweetpoint that are firing. docs/RUNBOOK.md has a section for each.",
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
    """Return the panels of value, sweet point and deviation of the services."""
    return [
        worst_first(
            "Services now, the worst first",
            "Deviation: 0 at the sweet point, 1 at the tolerance, below 0 better than the sweet "
            "point. Value and sweet point are seconds for runq_* and net_backlog, ratios for "
            "wait_ratio, psi_* and net_drops, otherwise in the unit of the profile.",
            (
                ("deviation", "none", f"{_BY_LOOP} ({series('loop_deviation', SERVICE)})"),
                ("value", "none", f"{_BY_LOOP} ({series('indicator_value', SERVICE)})"),
                ("sweet point", "none", f"{_BY_LOOP} ({series('indicator_sweet_point', SERVICE)})"),
            ),
        ),
        _against("Latencies", "Waiting times of tasks or packets", "s", _TIMES),
        _against(
            "Shares",
            "Shares of time in which a service waits, and of packets dropped",
            "percentunit",
            _RATIOS,
        ),
        _against(
            "Other indicators",
            "Cycles per instruction, cache misses, network rates and the services' own figures",
            "short",
            _OTHERS,
        ),
        graph(
            "Deviation from the sweet point",
            "All indicators on one scale: 0 at the sweet point, 1 (orange) at the tolerance of the "
            "profile, 2 is the maximum. The loop controls it to 0 by squeezing best-effort work; "
            "above 0.5 for 10 minutes the alert SweetpointMissed fires.",
            "none",
            (series("loop_deviation", SERVICE), _LOOP),
            bounds=(-1, 2),
            limit=(1, 2),
        ),
        states(
            "Status of the indicators",
            "fresh: measured. idle: the service hardly ran. stale: the source stopped delivering "
            "data, the safe state follows. lost: the service works on without a figure of its own, "
            "the squeeze is held. off: the node has no source of the indicator.",
            (
                coded("indicator_status", "status", _STATUS, "service, indicator"),
                _LOOP,
            ),
            _STATUS,
        ),
        graph(
            "Services' own figures",
            "Figures reported by the services themselves, such as request latency; only times.",
            "s",
            (series("service_level_seconds", SERVICE), "{{instance}} {{service}} {{source}}"),
        ),
    ]


def _against(title: str, text: str, unit: str, indicators: str) -> Builder[Panel]:
    return graph(
        title,
        f"{text} (lines), and their sweet points (dashed).",
        unit,
        (series("indicator_value", SERVICE, indicators), _LOOP),
        (series("indicator_sweet_point", SERVICE, indicators), f"{_LOOP} sweet point"),
        dashed="/ sweet point$/",
    )


def demand() -> list[Builder[Panel]]:
    """Return the panels of demand and state by channel."""
    return [
        graph(
            "Demand by channel",
            "0: best-effort work is not limited. 100 %: every knob of the channel is at its floor. "
            "Dashed: demand of the loops; the line follows increases at once, decreases in steps.",
            "percentunit",
            (series("channel_demand_ratio"), _CHANNEL),
            (series("channel_demand_wanted_ratio"), f"{_CHANNEL} wanted"),
            bounds=(0, 1),
            dashed="/ wanted$/",
        ),
        states(
            "State of the channels",
            "squeeze: best-effort work is limited. Not squeezed: own limit, the service "
            "reached its own limit of CPU or memory; host, the hypervisor takes CPU time; paused, "
            "the service is paused; other cause, best-effort work is not the cause. no data, safe "
            "state: data are missing.",
            (coded("channel_state", "state", _STATE, "channel"), _CHANNEL),
            [(state_words(state), colour) for state, colour in _STATE],
        ),
        graph(
            "Selected loop of each channel",
            "Demand of the selected loop, with the service and the indicator for which best-effort "
            "work is squeezed.",
            "percentunit",
            (
                f"{series('loop_demand_ratio', SERVICE)} and {series('loop_selected')} == 1",
                "{{instance}} {{channel}}: {{service}} {{indicator}}",
            ),
            bounds=(0, 1),
        ),
        graph(
            "Demand of every loop",
            "Demand of each service and indicator; a channel applies the largest one.",
            "percentunit",
            (series("loop_demand_ratio", SERVICE), _LOOP),
            bounds=(0, 1),
        ),
    ]
