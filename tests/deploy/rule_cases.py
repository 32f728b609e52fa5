# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Samples for which each alert must fire, and samples for which it must not."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ("FIRES", "QUIET", "Case")

NODE = {"job": "sweetpoint", "instance": "n1"}
WEB = {"service": "web", "indicator": "runq_p99", "channel": "cpu"}


@dataclass(frozen=True)
class Case:
    """Samples, one per minute, and the expected state of one alert.

    ``labels`` are those of the alert that fires at ``minute`` (empty: it does not fire),
    ``filled`` the expected texts of the templates in its annotations.
    """

    alert: str
    minute: int
    series: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)
    severity: str = "warning"
    filled: Mapping[str, str] = field(default_factory=dict)


def on(name: str, **labels: str) -> str:
    """Return a series of node n1."""
    pairs = ",".join(f'{key}="{value}"' for key, value in (NODE | labels).items())
    return f"{name}{{{pairs}}}"


def of_rollout(name: str, **labels: str) -> str:
    """Return a series of the controller of a rollout."""
    where = {"job": "profile-rollout", "instance": "p1", "namespace": "ns"} | labels
    pairs = ",".join(f'{key}="{value}"' for key, value in where.items())
    return f"sweetpoint_rollout_{name}{{{pairs}}}"


IN_NS = {"namespace": "ns"}
NS = {"{{ $labels.namespace }}": "ns"}
CANARY = of_rollout("phase", phase="Canary")
ROLLED_BACK = of_rollout("phase", phase="RolledBack")
LEADER = of_rollout("leader")
DAY = 24 * 60

N1 = {"{{ $labels.instance }}": "n1"}
STEADY = on("sweetpoint_ticks_total")

FIRES = (
    Case("SweetpointRolloutStuck", 16, {of_rollout("problem"): "1+0x20"}, IN_NS, filled=NS),
    Case("SweetpointRolloutStuck", DAY + 1, {CANARY: f"1+0x{DAY + 5}"}, IN_NS, "info", NS),
    Case("SweetpointRolledBack", 2, {ROLLED_BACK: "0 1+0x5"}, IN_NS, filled=NS),
    Case("SweetpointRolledBack", DAY, {ROLLED_BACK: f"0+0x5 1+0x{DAY}"}, IN_NS, filled=NS),
    # One that is gone, and one of two that both lack the Lease.
    Case("SweetpointRolloutControllerMissing", 20, {LEADER: "1+0x3 stale"}, IN_NS, filled=NS),
    Case(
        "SweetpointRolloutControllerMissing",
        20,
        {LEADER: "1+0x3 0+0x20", of_rollout("leader", instance="p2"): "0+0x30"},
        IN_NS,
        filled=NS,
    ),
    Case("SweetpointAgentDown", 8, {on("up"): "1 1 0+0x10"}, NODE, filled=N1),
    Case(
        "SweetpointAgentDown",
        11,
        {'up{job="node",instance="n1"}': "1+0x15"},
        {"": ""},
        "critical",
    ),
    Case(
        "SweetpointLoopStalled",
        8,
        {STEADY: "0+300x3 900+0x10"},
        NODE,
        "critical",
        N1,
    ),
    Case(
        "SweetpointLoopFailing",
        5,
        {on("sweetpoint_tick_failures_total"): "0 0 0 1 1 1"},
        NODE,
        filled=N1,
    ),
    Case("SweetpointLoopFailing", 8, {STEADY: "900 5 300 5 300 5 300 600 900"}, NODE, filled=N1),
    Case(
        "SweetpointLoopOverrun",
        20,
        {STEADY: "0+300x20", on("sweetpoint_tick_overruns_total"): "0+30x20"},
        NODE,
        filled=N1 | {"{{ $value | humanizePercentage }}": "10%"},
    ),
    Case(
        "SweetpointProbeUnavailable",
        6,
        {on("sweetpoint_probe_up", probe="sched", reason="no BTF"): "0+0x10"},
        NODE | {"probe": "sched"},
        "critical",
        N1,
    ),
    Case(
        "SweetpointProbeUnavailable",
        # The reason changes in between.
        16,
        {
            on("sweetpoint_probe_up", probe="net", reason="a"): "0+0x8 _x20",
            on("sweetpoint_probe_up", probe="net", reason="b"): "_x9 0+0x20",
        },
        NODE | {"probe": "net"},
        filled=N1 | {"{{ $labels.probe }}": "net"},
    ),
    Case(
        "SweetpointWorkloadsUnmeasured",
        6,
        {on("sweetpoint_workloads_unmeasured", **{"class": "latency-sensitive"}): "3+0x10"},
        NODE | {"class": "latency-sensitive"},
        "critical",
        N1 | {"{{ $value }}": "3"},
    ),
    Case(
        "SweetpointWorkloadsUnmeasured",
        20,
        {on("sweetpoint_unknown_oncpu_seconds_total"): "0+30x30"},
        NODE,
        filled=N1 | {"{{ $value | humanize }}": "500m"},
    ),
    Case("SweetpointSafeState", 3, {on("sweetpoint_safe_state"): "1+0x5"}, NODE, "critical", N1),
    Case(
        "SweetpointSafeState",
        6,
        {
            on("sweetpoint_safe_state"): "0+0x10",
            on("sweetpoint_channel_state", channel="network", state="safe"): "1+0x10",
        },
        NODE | {"channel": "network", "state": "safe"},
        filled=N1 | {"{{ $labels.channel }}": "network"},
    ),
    # All channels are in the safe state: only one alert fires.
    Case(
        "SweetpointSafeState",
        9,
        {
            on("sweetpoint_safe_state"): "1+0x10",
            on("sweetpoint_channel_state", channel="cpu", state="safe"): "1+0x10",
        },
        NODE,
        "critical",
        N1,
    ),
    Case(
        "SweetpointAgentMemory",
        30,
        {on("sweetpoint_agent_restarts_total", reason="memory-limit"): "0x9 1x40"},
        NODE | {"reason": "memory-limit"},
        filled=N1 | {"{{ $labels.reason }}": "memory-limit"},
    ),
    Case(
        "SweetpointStateDirLost",
        1,
        {on("sweetpoint_state_dir_problem"): "0 1+0x10"},
        NODE,
        filled=N1,
    ),
    Case(
        "SweetpointStateDirLost",
        30,
        {
            on("sweetpoint_state_dir_problem"): "0+0x40",
            on("sweetpoint_state_dir_losses_total"): "0x9 1x40",
        },
        NODE,
        filled=N1,
    ),
    Case(
        "SweetpointConfigReloadFailed",
        7,
        {on("sweetpoint_config_problem"): "0 1+0x10"},
        NODE,
        filled=N1,
    ),
    Case(
        "SweetpointConfigReloadFailed",
        7,
        {
            on("sweetpoint_config_problem"): "0+0x10",
            on("sweetpoint_kube_profiles_problem"): "0 1+0x10",
        },
        NODE,
        filled=N1,
    ),
    Case(
        "SweetpointConfigReloadFailed",
        18,
        {
            on("sweetpoint_kube_profiles_problem"): "0 0 1 0 0 0 1 0 0 0 1 0+0x10",
            on(
                "sweetpoint_kube_profiles_reload_total", result="failed"
            ): "_x1 1 1+0x3 2+0x3 3+0x20",
        },
        NODE,
        filled=N1,
    ),
    Case(
        "SweetpointSourceDegraded",
        8,
        {
            on("sweetpoint_source_degraded", source="pods"): "0 0 1+0x20",
            on("sweetpoint_source_degraded", source="probes"): "1+0x20",
            on("sweetpoint_source_degraded", source="profiles"): "1+0x20",
        },
        NODE | {"source": "pods"},
        filled=N1 | {"{{ $labels.source }}": "pods"},
    ),
    Case(
        "SweetpointUnlistedPods",
        17,
        {
            on("sweetpoint_kube_unlisted_pods"): "0 2+0x20",
            on("sweetpoint_source_degraded", source="pods"): "0+0x20",
        },
        NODE,
        filled=N1 | {"{{ $value }}": "2"},
    ),
    Case(
        "SweetpointActuatorWriteFailing",
        30,
        {on("sweetpoint_knob_writes_total", knob="cpu.quota", result="refused"): "0+1x30"},
        NODE | {"knob": "cpu.quota", "result": "refused"},
        filled=N1 | {"{{ $labels.knob }}": "cpu.quota", "{{ $value | humanize }}": "15"},
    ),
    Case(
        "SweetpointKnobDrift",
        15,
        {on("sweetpoint_knob_overwrites_total", knob="cpu.idle"): "0x9 1x20"},
        NODE | {"knob": "cpu.idle"},
        filled=N1 | {"{{ $labels.knob }}": "cpu.idle", "{{ $value | humanize }}": "1"},
    ),
    Case(
        "SweetpointMissed",
        16,
        {on("sweetpoint_loop_deviation", **WEB): "1.2+0x20"},
        NODE | WEB,
        filled=N1
        | {
            "{{ $labels.service }}": "web",
            "{{ $labels.indicator }}": "runq_p99",
            '{{ $value | printf "%.1f" }}': "1.2",
        },
    ),
    Case(
        "SweetpointBestEffortAtFloor",
        21,
        {
            on("sweetpoint_channel_demand_ratio", channel="cpu"): "1+0x25",
            on("sweetpoint_mode", mode="enforce"): "1+0x25",
        },
        NODE | {"channel": "cpu"},
        filled=N1 | {"{{ $labels.channel }}": "cpu"},
    ),
    Case(
        "SweetpointMemoryShort",
        11,
        {
            on("sweetpoint_memory_needed_bytes"): "101+0x15",
            on("sweetpoint_memory_room_bytes"): "100+0x15",
        },
        NODE,
        filled=N1,
    ),
    Case(
        "SweetpointEvictionStorm",
        60,
        {
            on("sweetpoint_evictions_total", instance=f"n{each}", result="evicted"): "0x9 2x60"
            for each in range(3)
        }
        | {on("sweetpoint_mode", instance=f"n{each}"): "1+0x60" for each in range(10)},
        {"job": "sweetpoint"},
        filled={"{{ $value | humanize }}": "6"},
    ),
    # The API server executes evictions, and its answers get lost.
    Case(
        "SweetpointEvictionStorm",
        60,
        {
            on("sweetpoint_evictions_total", instance=f"n{each}", result=result): "0x9 1x60"
            for each in range(3)
            for result in ("evicted", "unanswered")
        }
        | {on("sweetpoint_mode", instance=f"n{each}"): "1+0x60" for each in range(10)},
        {"job": "sweetpoint"},
        filled={"{{ $value | humanize }}": "6"},
    ),
)

QUIET = (
    Case("SweetpointRolloutStuck", 30, {of_rollout("problem"): "1+0x9 0+0x30"}),
    Case(
        "SweetpointRolloutStuck",
        DAY + 30,
        {CANARY: f"1+0x60 0+0x{DAY}", of_rollout("phase", phase="Soaking"): f"1+0x{DAY + 60}"},
    ),
    Case("SweetpointRolledBack", DAY + 30, {ROLLED_BACK: f"0 1+0x{DAY + 60}"}),
    Case(
        "SweetpointRolloutControllerMissing",
        30,
        {LEADER: "1+0x9 0+0x30", of_rollout("leader", instance="p2"): "0+0x10 1+0x30"},
    ),
    # A cluster without a rollout, and one whose controller was removed more than a day ago.
    Case("SweetpointRolloutControllerMissing", 30, {STEADY: "0+300x30"}),
    Case("SweetpointRolloutControllerMissing", DAY + 30, {LEADER: "1+0x3 stale"}),
    Case("SweetpointAgentDown", 8, {on("up"): "1 1 1 0 0 1+0x10"}),
    Case("SweetpointLoopStalled", 20, {STEADY: "0+300x20"}),
    # After a start, a scrape before the first tick has no series.
    Case("SweetpointLoopStalled", 4, {STEADY: "_ _ 4 304 604"}),
    Case(
        "SweetpointLoopFailing",
        30,
        {STEADY: "900 5 300 600+300x30", on("sweetpoint_tick_failures_total"): "2+0x30"},
    ),
    Case(
        "SweetpointLoopOverrun",
        30,
        {STEADY: "0+300x30", on("sweetpoint_tick_overruns_total"): "0+3x30"},
    ),
    Case(
        "SweetpointProbeUnavailable",
        30,
        {
            on("sweetpoint_probe_up", probe="sched", reason=""): "1+0x30",
            on("sweetpoint_probe_up", probe="net", reason=""): "1+0x30",
        },
    ),
    Case(
        "SweetpointWorkloadsUnmeasured",
        30,
        {
            on("sweetpoint_workloads_unmeasured", **{"class": "latency-sensitive"}): "0 3 0+0x30",
            on("sweetpoint_workloads_unmeasured", **{"class": "best-effort"}): "900+0x30",
            on("sweetpoint_unknown_oncpu_seconds_total"): "0+3x30",
        },
    ),
    Case(
        "SweetpointSafeState",
        10,
        {
            on("sweetpoint_safe_state"): "0 1 0 1 0+0x10",
            on("sweetpoint_channel_state", channel="cpu", state="safe"): "_ 1 _ 1 _x10",
            on("sweetpoint_channel_state", channel="cpu", state="free"): "1 _ 1 _ 1+0x10",
        },
    ),
    # Killed by somebody; and for memory more than an hour ago.
    Case(
        "SweetpointAgentMemory",
        80,
        {
            on("sweetpoint_agent_restarts_total", reason="signal"): "0x70 1x20",
            on("sweetpoint_agent_restarts_total", reason="memory-limit"): "0x9 1x90",
        },
    ),
    # It was lost more than an hour ago.
    Case(
        "SweetpointStateDirLost",
        80,
        {
            on("sweetpoint_state_dir_problem"): "0+0x90",
            on("sweetpoint_state_dir_losses_total"): "0x9 1x90",
        },
    ),
    Case("SweetpointConfigReloadFailed", 10, {on("sweetpoint_config_problem"): "0 1 1 0+0x10"}),
    Case(
        "SweetpointSourceDegraded",
        20,
        {
            # At a start the list of pods takes its time.
            on("sweetpoint_source_degraded", source="pods"): "1 1 1 0+0x20",
            on("sweetpoint_source_degraded", source="clock"): "0+0x20",
        },
    ),
    Case(
        "SweetpointUnlistedPods",
        30,
        {
            on("sweetpoint_kube_unlisted_pods"): "0 3 3 0+0x30",
            on("sweetpoint_source_degraded", source="pods"): "0+0x30",
        },
    ),
    # The other alert tells it.
    Case(
        "SweetpointUnlistedPods",
        30,
        {
            on("sweetpoint_kube_unlisted_pods"): "9+0x30",
            on("sweetpoint_source_degraded", source="pods"): "1+0x30",
        },
    ),
    # A refused ConfigMap that is corrected at once.
    Case(
        "SweetpointConfigReloadFailed",
        18,
        {
            on("sweetpoint_kube_profiles_problem"): "0 0 1 0+0x20",
            on("sweetpoint_kube_profiles_reload_total", result="failed"): "1 1 2+0x20",
        },
    ),
    # A single refused write.
    Case(
        "SweetpointActuatorWriteFailing",
        30,
        {on("sweetpoint_knob_writes_total", knob="cpu.quota", result="refused"): "0x9 1x40"},
    ),
    Case(
        "SweetpointKnobDrift",
        30,
        {
            on("sweetpoint_knob_overwrites_total", knob="cpu.idle"): "0+0x30",
            on("sweetpoint_knob_routine_overwrites_total", knob="cpu.idle"): "0+1x30",
            on("sweetpoint_knob_writes_total", knob="cpu.idle", result="applied"): "0+5x30",
        },
    ),
    # A working loop: alternately above and below the sweet point.
    Case(
        "SweetpointMissed",
        30,
        {on("sweetpoint_loop_deviation", **WEB): " ".join(["1.5 0.2 -0.4 -0.6 0.1"] * 6)},
    ),
    # Some minutes above the sweet point until the knobs take effect.
    Case("SweetpointMissed", 30, {on("sweetpoint_loop_deviation", **WEB): "2+0x8 0.1+0x30"}),
    Case(
        "SweetpointBestEffortAtFloor",
        30,
        {
            on("sweetpoint_channel_demand_ratio", channel="cpu"): "1+0x14 0.8+0x30",
            on("sweetpoint_mode", mode="enforce"): "1+0x30",
        },
    ),
    # As much as there is, and more only for some minutes.
    Case(
        "SweetpointMemoryShort",
        15,
        {
            on("sweetpoint_memory_needed_bytes"): "101+0x9 100+0x10",
            on("sweetpoint_memory_room_bytes"): "100+0x20",
        },
    ),
    # In observe mode no knob is at its floor.
    Case(
        "SweetpointBestEffortAtFloor",
        30,
        {
            on("sweetpoint_channel_demand_ratio", channel="cpu"): "1+0x30",
            on("sweetpoint_mode", mode="observe"): "1+0x30",
        },
    ),
    # As many evictions as in the case that fires, in a cluster of 200.
    Case(
        "SweetpointEvictionStorm",
        60,
        {
            on("sweetpoint_evictions_total", instance=f"n{each}", result="evicted"): "0x9 2x60"
            for each in range(3)
        }
        | {on("sweetpoint_mode", instance=f"n{each}"): "1+0x60" for each in range(200)},
    ),
    Case(
        "SweetpointEvictionStorm",
        60,
        {
            on("sweetpoint_evictions_total", result="evicted"): "0x9 3x60",
            on("sweetpoint_evictions_total", result="unanswered"): "0x9 2x60",
            on("sweetpoint_evictions_total", result="refused"): "0+1x60",
            on("sweetpoint_evictions_total", result="held"): "0+1x60",
            on("sweetpoint_mode", mode="enforce"): "1+0x60",
        },
    ),
)
