# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent: one control thread that measures, plans and acts on an absolute schedule.

Signals are blocked and taken between two ticks, so a tick is never torn: SIGTERM and SIGINT
restore every knob and end the agent, SIGHUP reads the configuration again, all or nothing.
"""

from dataclasses import dataclass, replace
import gc
import logging
from pathlib import Path
import signal
import time

from actuators import registry
from actuators.executor import Executor
from actuators.journal import Journal
from controller.config import Config, ConfigError, load
from controller.cost import CostMeter
from controller.guardian import Heartbeat
from controller.host import find_cgroup_layout, possible_cpus
from controller.httpd import Httpd
from controller.model import (
    Knob,
    KnobReading,
    Mode,
    Outcome,
    Plan,
    QosClass,
    Snapshot,
    Target,
    TargetKind,
    Workload,
)
from controller.plan import Planner
from controller.probes.btf import BtfError
from controller.probes.loader import LoadError
from controller.probes.sched import SchedProbe, SchedReading
from controller.probes.steal import StealMeter
from controller.record import Entry, Recorder
from controller.report import Board, TickReport
from controller.units import NS_PER_SEC, format_duration
from controller.workloads import static

__all__ = ("Agent", "Options")

_log = logging.getLogger(__name__)

_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_SCAN_NS = 1 * NS_PER_SEC
_AUDIT_NS = 5 * NS_PER_SEC
_FAILED_TICKS = 5
_HEALTHY_TICKS = 5
_GC_THRESHOLD = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says about a run. ``mode`` takes the place of the file's."""

    config: Path
    mode: Mode | None
    once: bool
    record: Path | None


class Agent:
    """One run of the agent.

    :raises ConfigError: the configuration, or what it says about this host's cgroups, is wrong.
    :raises HostError: no cgroup hierarchy with the cpu controller.
    :raises JournalError: the journal directory cannot be used.
    :raises HttpError: the address of the HTTP server is taken.
    :raises OSError: the recording cannot be written.
    """

    def __init__(self, options: Options, heartbeat: Heartbeat) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._options = options
        self._heartbeat = heartbeat
        self._config = load(options.config, mode=options.mode)
        self._layout = find_cgroup_layout()
        self._workloads = static.scan(self._layout, self._config.workloads, missing_ok=False)
        self._recorder = None if options.record is None else Recorder(options.record)
        self._knobs: dict[tuple[Target, Knob], KnobReading] = {}
        self._outcomes: tuple[Outcome, ...] = ()
        self._executor = Executor(
            Journal(self._config.state_dir / "journal"), registry.build(self._layout)
        )
        self._planner = Planner(self._config.settings, self._workloads)
        self._board = Board()
        self._problems: dict[str, str] = {}
        self._config_problem = ""
        self._fresh_inputs = True
        self._steal, self._cost = StealMeter(), CostMeter()
        self._ticks = self._overruns = self._failed_ticks = self._failed_in_row = 0
        self._next_scan_ns = self._next_audit_ns = 0
        self._http = self._listen()
        self._probe = self._load_probe()

    def run(self) -> int:
        """Run until a signal, or one tick with ``--once``; return the exit code.

        Whatever happens, every knob is restored before this returns.
        """
        try:
            return self._loop()
        finally:
            self._close()

    def _loop(self) -> int:
        self._assign(self._workloads)
        self._say_hello()
        # A tick makes thousands of records and no cycles: keep the collector off what stays,
        # and from running several times a tick (a tenth of the tick with 200 workloads).
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)
        tick_ns = self._config.settings.tick_ns
        # The first tick only bases the counters; one period later there is something to tell.
        due_ns = time.monotonic_ns()
        while True:
            self._guarded_tick()
            if self._failed_in_row >= _FAILED_TICKS:
                _log.error("%d ticks in a row failed: giving up", _FAILED_TICKS)
                return 1
            if self._options.once and self._ticks >= 2:
                return 0
            tick_ns = self._config.settings.tick_ns
            due_ns += tick_ns
            now_ns = time.monotonic_ns()
            if now_ns > due_ns:
                self._overruns += 1
                due_ns = now_ns
            if self._wait_until(due_ns):
                return 0

    def _wait_until(self, due_ns: int) -> bool:
        """Sleep until *due_ns* and obey signals; whether to stop."""
        while (left_ns := due_ns - time.monotonic_ns()) > 0:
            taken = signal.sigtimedwait(_SIGNALS, left_ns / NS_PER_SEC)
            if taken is None:
                break
            if taken.si_signo != signal.SIGHUP:
                _log.info("%s: restoring", signal.Signals(taken.si_signo).name)
                return True
            self._reload()
        return False

    def _guarded_tick(self) -> None:
        try:
            self._tick()
            self._failed_in_row = 0
        except Exception:  # whatever is broken, the node must get its knobs back
            self._failed_ticks += 1
            self._failed_in_row += 1
            _log.exception("tick abandoned; restoring every knob and starting afresh")
            self._executor.restore_all()
            self._outcomes = ()
            self._planner = Planner(self._config.settings, self._workloads)
            self._next_audit_ns = 0

    def _tick(self) -> None:
        started_ns = time.monotonic_ns()
        self._ticks += 1
        if started_ns >= self._next_scan_ns:
            self._next_scan_ns = started_ns + _SCAN_NS
            self._scan()
        if started_ns >= self._next_audit_ns:
            self._next_audit_ns = started_ns + _AUDIT_NS
            self._audit()
        reading = None if self._probe is None else self._probe.read()
        snapshot = self._snapshot(reading)
        plan = self._planner.step(snapshot, self._outcomes)
        self._record(snapshot, plan)
        self._act(plan)
        self._board.count(plan, self._outcomes)
        for verdict in plan.verdicts:
            _log.info("%s: %s", verdict.subject, verdict.text)
        self._publish(plan, reading, started_ns)
        self._heartbeat.beat()

    def _snapshot(self, reading: SchedReading | None) -> Snapshot:
        now_ns = time.monotonic_ns() if reading is None else reading.time_ns
        return Snapshot(
            time_ns=now_ns,
            age_ns=None if reading is None else reading.age_ns,
            workloads=() if reading is None else reading.workloads,
            blame=() if reading is None else reading.blame,
            system_oncpu_ns=None if reading is None else reading.system_oncpu_ns,
            idle_ns=None if reading is None else reading.idle_ns,
            steal_ns=self._steal.read(now_ns),
            knobs=tuple(self._knobs.values()),
        )

    def _act(self, plan: Plan) -> None:
        if self._config.settings.mode is Mode.OBSERVE:
            self._outcomes = ()
            return
        self._outcomes = self._executor.execute(plan.actions, now_ns=time.monotonic_ns())
        for outcome in self._outcomes:
            key = outcome.action.target, outcome.action.knob
            if outcome.applied is None:
                self._knobs.pop(key, None)
            else:
                self._knobs[key] = KnobReading(*key, outcome.applied)

    def _scan(self) -> None:
        """Look who is here; a conflict keeps the workloads as they were."""
        try:
            workloads = static.scan(self._layout, self._config.workloads, missing_ok=True)
        except ConfigError as error:
            if str(error) != self._config_problem:
                self._config_problem = str(error)
                _log.error("%s; going on with the workloads as they were", error)
            return
        if workloads != self._workloads:
            self._config_problem = ""
            self._assign(workloads)
            self._planner.set_workloads(workloads)
            self._fresh_inputs = True
            self._next_audit_ns = 0

    def _assign(self, workloads: tuple[Workload, ...]) -> None:
        """Tell the probe who is to be counted from now on."""
        now_ns = time.monotonic_ns()
        wanted = {w.cgroup: w for w in workloads}
        known = {w.cgroup: w for w in self._workloads}
        self._workloads = workloads
        if self._probe is None:
            return
        for cgroup, workload in known.items():
            if wanted.get(cgroup, workload).qos is not workload.qos or cgroup not in wanted:
                self._probe.release(cgroup, now_ns=now_ns)
        for cgroup, workload in wanted.items():
            latency = workload.qos is QosClass.LS
            if not self._probe.assign(cgroup, latency=latency, now_ns=now_ns):
                _log.warning("%s: no room to measure it", workload.name)

    def _audit(self) -> None:
        """Read back every knob that we may move."""
        targets = [
            Target(TargetKind.CGROUP, w.cgroup.hierarchy, w.cgroup.id, w.path)
            for w in self._workloads
            if w.qos is QosClass.BE
        ]
        readings = self._executor.read(targets)
        self._knobs = {(r.target, r.knob): r for r in readings}

    def _reload(self) -> None:
        try:
            config = load(self._options.config, mode=self._options.mode)
            workloads = static.scan(self._layout, config.workloads, missing_ok=True)
        except ConfigError as error:
            self._board.reloads["failed"] = self._board.reloads.get("failed", 0) + 1
            self._config_problem = str(error)
            _log.error("reload: %s\nreload: nothing changed", error)
            return
        if (config.state_dir, config.http) != (self._config.state_dir, self._config.http):
            _log.warning("reload: state_dir and http change only with a restart")
            config = replace(config, state_dir=self._config.state_dir, http=self._config.http)
        leaving = (self._config.settings.mode, config.settings.mode) == (Mode.ENFORCE, Mode.OBSERVE)
        if leaving:
            self._executor.restore_all()
            self._outcomes = ()
        self._config = config
        self._config_problem = ""
        self._assign(workloads)
        self._planner = self._planner_for(config, workloads)
        self._fresh_inputs = True
        self._next_audit_ns = 0
        self._board.reloads["applied"] = self._board.reloads.get("applied", 0) + 1
        _log.info("reload: %s applied", self._options.config)

    def _planner_for(self, config: Config, workloads: tuple[Workload, ...]) -> Planner:
        """Carry the planner over: first those that both know, then settings, then the rest."""
        profiles = config.settings.profiles
        self._planner.set_workloads(
            [w for w in workloads if w.qos is not QosClass.LS or w.profile in profiles]
        )
        self._planner.reconfigure(config.settings)
        self._planner.set_workloads(workloads)
        return self._planner

    def _record(self, snapshot: Snapshot, plan: Plan) -> None:
        if self._recorder is not None:
            fresh, self._fresh_inputs = self._fresh_inputs, False
            self._recorder.write(
                Entry(
                    snapshot=snapshot,
                    outcomes=self._outcomes,
                    plan=plan,
                    settings=self._config.settings if fresh else None,
                    workloads=self._workloads if fresh else None,
                )
            )

    def _publish(self, plan: Plan, reading: SchedReading | None, started_ns: int) -> None:
        tick_ns = time.monotonic_ns() - started_ns
        self._board.durations_ns.append(tick_ns)
        self._board.report = TickReport(
            time_ns=time.monotonic_ns(),
            mode=self._config.settings.mode,
            age_ns=None if reading is None else reading.age_ns,
            switches=0 if reading is None else reading.switches,
            workloads=self._workloads,
            plan=plan,
            knobs=tuple(self._knobs.values()),
            tick_ns=tick_ns,
            ticks=self._ticks,
            overruns=self._overruns,
            failed_ticks=self._failed_ticks,
            cost=self._cost.read(started_ns),
            probe_problems=self._problems,
            config_problem=self._config_problem,
        )

    def _load_probe(self) -> SchedProbe | None:
        try:
            return SchedProbe(cpus=max(possible_cpus()) + 1)
        except (BtfError, LoadError, OSError) as error:
            self._problems["sched"] = str(error)
            _log.error("probe sched is off: %s", error)
            return None

    def _listen(self) -> Httpd | None:
        if self._config.http is None:
            return None
        healthy_ns = max(_HEALTHY_TICKS * self._config.settings.tick_ns, 2 * NS_PER_SEC)
        return Httpd(self._board, self._config.http, healthy_ns=healthy_ns)

    def _say_hello(self) -> None:
        settings = self._config.settings
        counts = {qos: sum(w.qos is qos for w in self._workloads) for qos in QosClass}
        _log.info(
            "%s every %s: %d latency-sensitive, %d best-effort, %d system workloads",
            settings.mode,
            format_duration(settings.tick_ns),
            counts[QosClass.LS],
            counts[QosClass.BE],
            counts[QosClass.SYSTEM],
        )

    def _close(self) -> None:
        report = self._executor.restore_all()
        for result in report.results:
            _log.info("%s: %s: %s", result.subject, result.result, result.message)
        if self._recorder is not None:
            self._recorder.close()
        if self._http is not None:
            self._http.close()
        if self._probe is not None:
            self._probe.close()
