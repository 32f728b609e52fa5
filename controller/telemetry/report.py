# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The report that the control thread publishes after every tick, and counters over all ticks."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
import threading
import time
from typing import Any

from actuators.ordering import is_passing
from controller.config.candidate import Candidate
from controller.config.policies import PoliciesInForce
from controller.config.policy_changes import settings_of
from controller.core.decision import Outcome, Plan, Verdict
from controller.core.in_force import InForce
from controller.core.looks import TickReason
from controller.core.model import (
    Blame,
    CgroupId,
    EvictionAnswer,
    Knob,
    KnobReading,
    KnobValue,
    LinkSample,
    Mode,
    QosClass,
    Target,
    Workload,
    WorkloadSample,
)
from controller.core.writes.io_classes import IoClassState
from controller.host.pause_file import PauseState
from controller.host.sources import SourceProblem, SourceState
from controller.host.state_dir import StateDirState
from controller.host.store import StoreState
from controller.kube.state import ClusterState
from controller.nri.doorbell import DoorbellState
from controller.probes.service_level.ledger import ServiceState
from controller.reconcilers.core_scheduling import CoreState
from controller.reconcilers.oom_order import OomState
from controller.reconcilers.resctrl.control_group import GroupState
from controller.reconcilers.resctrl.monitored import MonitorState
from controller.telemetry.suffering import SufferingClock

__all__ = (
    "QUIET",
    "UNFOUNDED",
    "AgentCost",
    "HistoryState",
    "PublishedState",
    "TickReport",
)

# What a look finds that leaves a tick out.
QUIET = "quiet"
# What a look finds that the kernel has caused, if it leaves a tick out.
UNFOUNDED = "unfounded"
_TICKS = 600
_MAX_TEXTS = 100
_VERDICTS = 50
# Longest wait of a reader for the end of a tick.
_YIELD_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCost:
    """Resource usage of the agent itself, summed over its processes.

    ``cpu_s`` is CPU time in seconds, ``pss_bytes`` the proportional set size. ``used_cpus`` is the
    CPU usage of the last ten seconds, with the probes if the kernel counts them and without HTTP
    requests, to be compared with ``budget_cpus``. The first ``shed`` of ``details`` are shed now.
    ``probes`` maps each probe to (runs, run time in ns) of its BPF programs.
    """

    cpu_s: float
    pss_bytes: int | None
    used_cpus: float | None
    budget_cpus: float
    budget_bytes: int
    details: tuple[str, ...]
    shed: int
    probes: Mapping[str, tuple[int, int]]

    @property
    def without(self) -> tuple[str, ...]:
        """The details that are shed now."""
        return self.details[: self.shed]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryState:
    """State of the history.

    ``problem`` is the reason why it cannot be written now; empty: it can, or is off. ``lost_*``
    count the records that were not stored. ``cpu_s`` is the CPU time of its thread. ``cut_cpu_s``
    is what enforcing would have taken from best-effort work at most, in CPU seconds; it grows in
    observe mode only.
    """

    enabled: bool = False
    problem: str = ""
    lost_moments: int = 0
    lost_snapshots: int = 0
    cpu_s: float = 0.0
    cut_cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TickReport:
    """One tick: measurements, plan, state of the knobs, results, and cost.

    ``degraded`` has the sources that control rests on and that are not well, each once.
    ``doorbell`` is ``None`` where the container runtime tells of no containers.
    ``in_force`` is the record of what limits best-effort work, after the writes of the tick.
    ``config_digest`` changes with the texts of the configuration, not with the policies in force.
    ``label_origin``: where the node's labels come from, by which ``policies`` are in force.
    """

    time_ns: int
    mode: Mode
    age_ns: int | None
    switches: int
    missed_switches: int
    workloads: tuple[Workload, ...]
    samples: tuple[WorkloadSample, ...]
    host_pressure_ns: Mapping[str, int]
    plan: Plan
    knobs: tuple[KnobReading, ...]
    tick_ns: int
    ticks: int
    overruns: int
    failed_ticks: int
    cost: AgentCost | None
    probe_problems: Mapping[str, str]
    config_problem: str
    config_digest: str = ""
    services: tuple[ServiceState, ...] = ()
    refused_pushes: Mapping[str, int] = field(default_factory=dict)
    links: tuple[LinkSample, ...] = ()
    link_problems: Mapping[str, str] = field(default_factory=dict)
    measured_by_netns: frozenset[CgroupId] = frozenset()
    monitor: MonitorState | None = None
    control_group: GroupState = field(default_factory=GroupState)
    io_classes: tuple[IoClassState, ...] = ()
    probe_fallbacks: Mapping[str, str] = field(default_factory=dict)
    cores: CoreState = field(default_factory=CoreState)
    oom: OomState = field(default_factory=OomState)
    blame: tuple[Blame, ...] = ()
    overwritten: Mapping[Knob, int] = field(default_factory=dict)
    routine: Mapping[Knob, int] = field(default_factory=dict)
    cluster: ClusterState | None = None
    left_out: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unknown_oncpu_ns: int = 0
    unmeasured: Mapping[QosClass, int] = field(default_factory=dict)
    state_dir: StateDirState = field(default_factory=StateDirState)
    store: StoreState = field(default_factory=StoreState)
    history: HistoryState = field(default_factory=HistoryState)
    doorbell: DoorbellState | None = None
    pauses: PauseState = field(default_factory=PauseState)
    degraded: tuple[SourceProblem, ...] = ()
    restarts: Mapping[str, int] = field(default_factory=dict)
    in_force: InForce = field(default_factory=InForce)
    policies: PoliciesInForce = field(default_factory=PoliciesInForce)
    label_origin: str = ""

    @property
    def ready(self) -> bool:
        """Whether each source that control needs has worked since the start."""
        return all(each.state is not SourceState.UNSEEN for each in self.degraded)


def _quantile(values: Iterable[int], quantile: float) -> int | None:
    ordered = sorted(values)
    return ordered[int(quantile * (len(ordered) - 1))] if ordered else None


def _set_event() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@dataclass(slots=True)
class PublishedState:
    """The latest report and the counters over all ticks; written by the control thread.

    ``report`` is replaced and never modified, so a reader must read the attribute once and use that
    object. A reader with much work calls ``yield_to_tick`` from time to time, because all threads
    share one interpreter. ``between_ticks`` is set while no tick runs. ``verdicts`` are the last
    50, with the times of their plans. ``durations_ns`` and ``lateness_ns`` are those of the last
    600 ticks; a tick is late by the time from when it was due to its start.
    ``looks`` counts the due moments of ticks by why a tick was made, ``QUIET`` where none was, and
    what was found between them.
    ``is_asked`` is set by the HTTP server when it makes a page of the report.
    ``http_listen_failures`` is written by the HTTP server: how often it could not listen on its
    address.
    """

    report: TickReport | None = None
    between_ticks: threading.Event = field(default_factory=_set_event)
    writes: dict[tuple[Knob, str], int] = field(default_factory=dict)
    decisions: dict[tuple[str, str], int] = field(default_factory=dict)
    evictions: dict[tuple[str, str], int] = field(default_factory=dict)
    suffered_ns: dict[tuple[str, str, str], int] = field(default_factory=dict)
    reloads: dict[str, int] = field(default_factory=dict)
    looks: dict[str, int] = field(default_factory=dict)
    is_asked: bool = False
    http_listen_failures: int = 0
    _clock: SufferingClock = field(default_factory=SufferingClock)
    durations_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_TICKS))
    lateness_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_TICKS))
    verdicts: deque[tuple[int, Verdict]] = field(default_factory=lambda: deque(maxlen=_VERDICTS))

    @property
    def ran_ns(self) -> int:
        """The time that the plans so far stand for."""
        return self._clock.ran_ns

    def yield_to_tick(self) -> bool:
        """Wait for the end of a running tick, at most 0.1 s; return whether it ended."""
        return self.between_ticks.wait(_YIELD_S)

    def count(
        self,
        plan: Plan,
        outcomes: tuple[Outcome, ...],
        evictions: tuple[EvictionAnswer, ...] = (),
        left_out_ns: int = 0,
    ) -> None:
        """Count the channel states of *plan*, the results of its writes, and eviction answers.

        The verdicts of *plan* are kept. *left_out_ns*: see ``Snapshot``.
        """
        for answer in evictions:
            eviction = answer.channel, answer.result
            self.evictions[eviction] = self.evictions.get(eviction, 0) + 1
        for suffered, elapsed_ns in self._clock.update(plan, left_out_ns).items():
            self.suffered_ns[suffered] = self.suffered_ns.get(suffered, 0) + elapsed_ns
        self._count_states(plan)
        self.verdicts.extend((plan.time_ns, verdict) for verdict in plan.verdicts)
        for outcome in outcomes:
            key = outcome.action.knob, _result(outcome)
            self.writes[key] = self.writes.get(key, 0) + 1

    def count_look(self, reason: TickReason | None, *, woken: bool = False) -> None:
        """Count a due moment, at which a tick is made for *reason*, or none.

        If none is, the states of the channels last on, and count as those of a tick. *woken*: it
        was not due, but the kernel caused a look.
        """
        nothing = UNFOUNDED if woken else QUIET
        result = nothing if reason is None else str(reason)
        self.looks[result] = self.looks.get(result, 0) + 1
        if result == QUIET and self.report is not None:
            self._count_states(self.report.plan)

    def _count_states(self, plan: Plan) -> None:
        for demand in plan.demands:
            decision = demand.channel, demand.state
            self.decisions[decision] = self.decisions.get(decision, 0) + 1

    def count_reload(self, result: str) -> None:
        """Count a reload of the configuration by *result*: ``applied`` or ``failed``."""
        self.reloads[result] = self.reloads.get(result, 0) + 1

    def duration_ns(self, quantile: float) -> int | None:
        """Return the *quantile* of the durations of the last 600 ticks; ``None`` before any."""
        return _quantile(self.durations_ns.copy(), quantile)

    def late_ns(self, quantile: float) -> int | None:
        """Return the *quantile* of the lateness of the last 600 ticks; ``None`` before any."""
        return _quantile(self.lateness_ns.copy(), quantile)

    def status(self) -> Iterator[tuple[str, Any]]:
        """Yield the fields of /statusz with plain types and records; enums are strings."""
        report = self.report
        yield "ready", report is not None
        if report is None:
            return
        yield "degraded", [each._asdict() for each in report.degraded]
        yield "mode", report.mode
        yield "pauses", [{**p._asdict(), "source": source} for source, p in report.pauses.entries]
        yield "pause_problems", dict(report.pauses.problems)
        yield "policies", _policies_status(report.policies, report.label_origin)
        yield "time_ns", report.time_ns
        yield "data_age_ns", report.age_ns
        yield (
            "tick",
            {
                "duration_ns": report.tick_ns,
                "duration_median_ns": self.duration_ns(0.5),
                "duration_p99_ns": self.duration_ns(0.99),
                "late_median_ns": self.late_ns(0.5),
                "late_p99_ns": self.late_ns(0.99),
                "count": report.ticks,
                "overruns": report.overruns,
                "failed": report.failed_ticks,
                "looks": self.looks.copy(),
            },
        )
        samples = {sample.cgroup: sample for sample in report.samples}
        yield (
            "workloads",
            [{**w._asdict(), **_done(samples.get(w.cgroup))} for w in report.workloads],
        )
        yield "left_out", report.left_out[:_MAX_TEXTS]
        yield "missing", report.missing[:_MAX_TEXTS]
        yield "plan", report.plan
        yield "ran_ns", self.ran_ns
        yield (
            "suffered",
            [
                {"service": service, "channel": channel, "state": state, "time_ns": time_ns}
                for (service, channel, state), time_ns in self.suffered_ns.copy().items()
            ],
        )
        yield (
            "decisions",
            [
                {"time_ns": time_ns, "subject": verdict.subject, "text": verdict.text}
                for time_ns, verdict in self.verdicts.copy()
            ],
        )
        wanted = {(a.target, a.knob): a.value for a in report.plan.actions}
        yield "knobs", [_knob_status(reading, wanted) for reading in report.knobs]
        yield "in_force", _in_force_status(report.in_force)
        yield "wall_ns", time.time_ns() - time.monotonic_ns() + report.time_ns
        yield "agent", report.cost
        yield "restarts", dict(report.restarts)
        yield "probes", report.probe_problems
        yield "probe_fallbacks", report.probe_fallbacks
        yield "links", [_link_status(sample) for sample in report.links]
        yield "link_problems", report.link_problems
        yield "resctrl_group", report.control_group
        yield "io_classes", report.io_classes
        yield "core_scheduling", report.cores._asdict()
        yield "oom_order", report.oom._asdict()
        yield "config_problem", report.config_problem
        yield "config_digest", report.config_digest
        yield "state_dir", report.state_dir._asdict()
        yield "store", report.store
        yield "history", report.history
        yield "nri", report.doorbell
        yield "http_listen_failures", self.http_listen_failures
        yield "service_level", report.services
        yield "resctrl_monitor", report.monitor
        yield "cluster", None if report.cluster is None else report.cluster.status()


def _done(sample: WorkloadSample | None) -> dict[str, int | None]:
    """Return what a workload did since its cgroup was made, as far as it is measured."""
    if sample is None:
        return {"oncpu_ns": None}
    done = {"oncpu_ns": sample.oncpu_ns, "instructions": sample.instructions}
    if sample.tx_bytes is not None and sample.rx_bytes is not None:
        done["network_bytes"] = sample.tx_bytes + sample.rx_bytes
    return {**done, "io_bytes": sample.io_bytes}


def _policies_status(policies: PoliciesInForce, label_origin: str) -> dict[str, Any] | None:
    """Return the policies with plain types; ``None``: the file has none."""
    if not policies.known:
        return None
    return {
        "known": policies.known,
        "in_force": [
            {
                "policy": each.name,
                "because": each.because,
                "sets": _settings(each.sets),
                "replaces": each.sets.get("replace_profiles") or {},
                "changes": [change._asdict() for change in policies.changes.get(each.name, ())],
            }
            for each in policies.entries
        ],
        "candidate": _candidate_status(policies.candidate),
        "undecided": policies.undecided,
        "next_change_s": policies.next_change_s,
        "node_labels": label_origin,
    }


def _settings(sets: Mapping[str, Any]) -> dict[str, object]:
    """Return the single keys that a policy sets, without the profiles that it replaces."""
    others = {key: value for key, value in sets.items() if key != "replace_profiles"}
    return dict(sorted(settings_of(others).items()))


def _candidate_status(candidate: Candidate | None) -> dict[str, Any] | None:
    if candidate is None:
        return None
    return {"name": candidate.name, "digest": candidate.digest, "until_s": candidate.until_s}


def _in_force_status(record: InForce) -> dict[str, Any]:
    """Return the record with plain types; its times are CLOCK_MONOTONIC, as ``time_ns`` is."""
    return {
        "time_ns": record.time_ns,
        "cpus": record.cpus,
        "unlimited": record.unlimited,
        "knobs": [{**each._asdict(), "path": each.target.path} for each in record.knobs],
        "limited": [
            {
                "name": each.workload.name,
                "path": each.workload.path,
                "cpus": each.cpus,
                "since_ns": each.since_ns,
                "knobs": [knob.knob for knob in each.knobs],
                "reason": each.main.reason,
                "channel": each.main.channel,
                "service": each.main.service,
                "indicator": each.main.indicator,
            }
            for each in record.limited
        ],
    }


def _result(outcome: Outcome) -> str:
    if outcome.foreign is not None:
        return "foreign"
    if outcome.errno is not None and is_passing(outcome.action.knob, outcome.errno):
        return "busy"
    return "applied" if outcome.failure is None else outcome.failure


def _link_status(sample: LinkSample) -> dict[str, Any]:
    direction = "ingress" if sample.ingress else "egress"
    figures = sample._asdict()
    del figures["ingress"]
    return figures | {"link": sample.link.path, "direction": direction}


def _knob_status(
    reading: KnobReading, wanted: Mapping[tuple[Target, Knob], KnobValue]
) -> dict[str, str]:
    value = wanted.get((reading.target, reading.knob), reading.value)
    return {
        "path": reading.target.path,
        "knob": reading.knob,
        "wanted": value,
        "applied": reading.value,
    }
