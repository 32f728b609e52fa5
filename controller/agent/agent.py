# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The control thread of the agent: it measures, plans and acts once per tick.

At each due moment (period: ``tick`` in the configuration) ``Looks.reason`` finds out whether a tick
is needed; if none is, it is left out. Once between two of them, the kernel may wake the thread for
a tick because a service waits, or because of its pressure. A tick, see ``Agent._tick``:

0. ``StateKeeper.poll``, once a second, stores records again that another program removed.
1. ``ConfigFollower.poll`` rescans the workloads when a scan is due. A change goes to the planner
   before it plans.
2. ``Node.refresh_targets``, every 5 s and after a change, renews the list of knobs to read back.
   The online CPUs are counted again as well.
3. ``Pauses.poll`` finds out what is paused, ``Node.poll`` reads the probes and a part of the
   knobs. All of it is one ``Snapshot``.
4. ``Planner.step`` computes a ``Plan`` from the snapshot and from the outcomes of the previous
   tick's writes. It is pure: no clock, no file, no thread.
5. ``Recorder.write`` appends these inputs and the plan to the recording, if there is one.
6. ``Node.execute``, in enforce mode only, writes the actions of the plan and reads them back. The
   results are the outcomes for the next tick.
7. ``Node.dispatch`` starts the eviction of the plan, if it has one, and passes the plan on to the
   cluster; in observe mode as well.
8. The verdicts of the plan are logged, the agent's own cost is compared with its budget, the
   ``TickReport`` for /metrics and /statusz is published, the guardian gets a heartbeat, and the
   tick is handed to the thread that writes the history.

If a tick raises, it is abandoned: every knob is restored and the next tick starts with a new
planner. After five failed ticks in a row the agent ends with exit code 1.

Ticks are due at fixed times, less often while best-effort work is asleep. A tick that takes longer
than that is counted as an overrun, and the schedule starts again at its end; missed ticks are not
made up for.

Signals are blocked and handled between two ticks, so a tick is never interrupted: SIGTERM and
SIGINT restore every knob and end the agent, SIGHUP reloads the configuration (see ``reload``).
At a due moment, before the tick, the configuration with other policies is applied if those are in
force. A container that is about to run causes a tick of its own (see ``arrivals``).
"""

from dataclasses import dataclass, replace
import gc
import logging
from pathlib import Path
import signal
import sys
import time

from controller.agent.arrivals import ARRIVAL, Arrivals
from controller.agent.candidates import Candidates
from controller.agent.config_source import ConfigSource
from controller.agent.guardian import Heartbeat
from controller.agent.history.writer import History
from controller.agent.learned import LearnedStore
from controller.agent.looks import FIGURE, Looks
from controller.agent.node import Node
from controller.agent.node_labels import NodeLabels
from controller.agent.pauses import Pauses
from controller.agent.policy_clock import PolicyClock
from controller.agent.recording import Entry, Recorder
from controller.agent.reload import Change, ConfigFollower
from controller.agent.schedule import Schedule
from controller.agent.self_budget import CostMeter
from controller.agent.source_problems import SourceProblems
from controller.agent.sources import Sources
from controller.agent.start_log import StartLog
from controller.agent.state_keeper import StateKeeper
from controller.agent.trials import Trials
from controller.config.load import Config
from controller.core.decision import Outcome, Plan
from controller.core.in_force import InForce
from controller.core.learning.state import LearnedIndicator
from controller.core.looks import LONGEST_NS, TickReason
from controller.core.model import Mode, Snapshot
from controller.core.planner import Planner
from controller.core.units import NS_PER_SEC
from controller.host.malloc import return_freed_memory
from controller.host.own_cgroup import OwnWeight
from controller.host.signal_wait import READABLE, SignalWait
from controller.host.state_dir import Lock
from controller.host.store import Store
from controller.kube.state import ClusterState
from controller.probes.sched import DETAILS
from controller.telemetry.http import StatusServer
from controller.telemetry.report import HistoryState, PublishedState, TickReport

__all__ = ("Agent", "Options")

_log = logging.getLogger(__name__)

_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, ARRIVAL, FIGURE}
_REFRESH_NS = 5 * NS_PER_SEC
_FAILED_TICKS = 5
_HEALTHY_TICKS = 5
_GC_THRESHOLD = 50_000
# How long another thread may hold the interpreter lock while a tick is due. While a page about a
# thousand workloads was rendered, ticks began 5.2 ms late with Python's default of 5 ms, and
# 1.2 ms late with this value.
_SWITCH_INTERVAL_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a run. ``mode`` overrides the mode of the configuration file.

    ``lock`` is that of the state directory in which the guardian looks for what this agent holds.
    It overrides ``state_dir`` of the file, which may have changed since the guardian read it.
    """

    config: Path
    mode: Mode | None
    once: bool
    record: Path | None
    lock: Lock


class Agent:
    """One run of the agent, from the loaded configuration to the restored knobs.

    :raises ConfigError: the configuration is invalid.
    :raises HostError: no cgroup hierarchy with the cpu controller is mounted.
    :raises JournalError: the journal directory cannot be used.
    :raises OSError: the recording cannot be written, or the host is short of a resource.
    """

    def __init__(self, options: Options, heartbeat: Heartbeat) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._signals = SignalWait(_SIGNALS)
        self._once = options.once
        state_dir = options.lock.directory
        self._labels = NodeLabels(state_dir)
        clock = PolicyClock(self._labels)
        self._source = source = ConfigSource(options.config, options.mode, state_dir, clock=clock)
        loaded = source.start()
        if loaded.state_dir != state_dir:
            _log.warning(
                "%s: state_dir %s is not used before 'sweetpoint run' is stopped and started "
                "again; it stays %s",
                options.config,
                loaded.state_dir,
                state_dir,
            )
            loaded = replace(loaded, state_dir=state_dir)
        self._heartbeat = heartbeat
        self._recorder = None if options.record is None else Recorder(options.record)
        self._published = PublishedState()
        self._store = Store(loaded.data_dir)
        self._history: History | None = None
        if loaded.history.enabled and not options.once:
            self._history = History(loaded.data_dir, loaded.history)
        self._http = self._serve(loaded)
        self._arrivals = Arrivals(loaded.nri)
        # Before the probes are loaded, which takes seconds on a busy machine. No container waits
        # before the first tick.
        self._arrivals.follow(loaded.settings.mode is Mode.ENFORCE and not options.once)
        self._node = Node(loaded, self._store, lambda: self._arrivals.pods)
        self._pauses = Pauses(loaded.state_dir, lambda: self._node.pause_annotation)
        self._candidates = Candidates(loaded.state_dir)
        self._trials = Trials(options.config.absolute())
        self._keeper = StateKeeper(options.lock, self._node.journals, self._store_again)
        self._follower = ConfigFollower(source, loaded, self._node)
        always = None if self._recorder is None else TickReason.RECORDING
        self._looks = Looks(
            self._node,
            self._follower,
            self._pauses,
            self._published,
            TickReason.OFF if options.once else always,
        )
        self._outcomes: tuple[Outcome, ...] = ()
        self._learned_store = LearnedStore(self._store)
        self._make_planner(self._learned_store.first)
        self._cost = CostMeter(
            self._config.budget,
            DETAILS,
            self._node.sampler.costs,
            http_cpu_s=lambda: 0.0 if self._http is None else self._http.cpu_s,
        )
        self._ticks = self._overruns = self._failed_ticks = self._failed_in_row = 0
        self._next_refresh_ns = 0
        self._schedule = Schedule(0)
        self._start_log = StartLog()
        self._sources = Sources(self._node.warn_of_source)
        self._problems = SourceProblems(self._node.sampler)
        self._weight = OwnWeight()
        source.keep()

    @property
    def _config(self) -> Config:
        return self._follower.config

    @property
    def _enforces(self) -> bool:
        return self._config.settings.mode is Mode.ENFORCE and not self._once

    def run(self) -> int:
        """Run until a signal, or for two ticks with ``--once``; return the exit code.

        The exit code is 0, or 1 after five failed ticks in a row. Every knob is restored before
        this method returns or raises.
        """
        try:
            return self._loop()
        finally:
            self._close()

    def _loop(self) -> int:
        self._log_start()
        # A tick makes thousands of records and no reference cycles. The garbage collector skips
        # the objects that exist now, and does not run several times per tick, which took a tenth
        # of the tick with 200 workloads.
        gc.collect()
        gc.freeze()
        return_freed_memory()
        gc.set_threshold(_GC_THRESHOLD)
        gc.enable()
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        schedule = self._schedule = Schedule(time.monotonic_ns())
        while True:
            self._look()
            if self._failed_in_row >= _FAILED_TICKS:
                _log.error("%d ticks in a row failed: giving up", _FAILED_TICKS)
                return 1
            # The first tick only reads the counters; indicators are differences of two readings.
            if self._once and self._ticks >= 2:
                return 0
            tick_ns, strain = self._config.settings.tick_ns, self._looks.strain
            schedule.pass_due(self._planner.period_ns, tick_ns, strain=strain)
            overrun = time.monotonic_ns() > schedule.due_ns
            if self._wait():
                return 0
            now_ns = time.monotonic_ns()
            late_ns = now_ns - schedule.due_ns
            self._published.lateness_ns.append(late_ns)
            self._weight.update(now_ns, late_ns)
            late = overrun or late_ns > self._config.settings.tick_ns
            self._problems.clock.update(late=late)
            if overrun:
                self._overruns += 1
                schedule.due_ns += late_ns

    def _wait(self) -> bool:
        """Sleep until the next due moment and handle signals; return whether to stop."""
        while True:
            taken = self._signals.until(self._schedule.due_ns, *self._looks.alarms)
            self._looks.hear(self._signals.readable)
            if taken is None:
                return False
            if taken in (READABLE, FIGURE):
                self._look(woken=True)
            elif taken == ARRIVAL:
                # A tick of its own, unless one began since: the others stay where they are.
                if self._arrivals.waits:
                    self._look(TickReason.ARRIVAL)
            elif taken == signal.SIGHUP:
                self._reload()
            else:
                _log.info("%s: restoring every knob", signal.Signals(taken).name)
                return True

    def _look(self, reason: TickReason | None = None, *, woken: bool = False) -> None:
        """Make a tick for *reason*, or if a look finds one; *woken*: before one is due."""
        due = reason is None and not woken
        try:
            if due:
                self._follow_policies()
            now_ns = time.monotonic_ns()
            if reason is None:
                reason = self._looks.reason(now_ns, self._planner.period_ns, woken=woken)
            self._published.count_look(reason, woken=woken)
            if reason is not None:
                self._published.between_ticks.clear()
                self._tick()
                if woken:
                    tick_ns, strain = self._config.settings.tick_ns, self._looks.strain
                    self._schedule.pass_woken(now_ns, tick_ns, strain=strain)
            if due and not self._schedule.was_woken:
                self._looks.arm()
            self._failed_in_row = 0
        except Exception:  # after any error the knobs must not stay as the plan left them
            self._failed_ticks += 1
            self._failed_in_row += 1
            _log.exception("tick abandoned: restoring every knob and starting with a new planner")
            self._restore_all()
        finally:
            self._arrivals.end_writes()
            self._published.between_ticks.set()

    def _restore_all(self) -> None:
        """Restore every knob, and start with a new planner."""
        self._node.restore()
        self._outcomes = ()
        self._make_planner(self._planner.learned)
        self._next_refresh_ns = 0
        self._looks.expect(TickReason.START)
        self._note_restored()

    def _store_again(self) -> None:
        self._node.store_again()
        self._pauses.store_again()
        self._labels.store()
        self._source.keep()

    def _make_planner(self, learned: tuple[LearnedIndicator, ...]) -> None:
        self._initial_learned = learned
        history = self._initial_evictions = self._node.eviction_history
        self._planner = Planner(self._config.settings, self._node.workloads, history, learned)
        # What the next entry of the recording must contain for a replay.
        self._new_planner = self._new_settings = self._new_workloads = True

    def _tick(self) -> None:
        """Measure, plan and act once; the steps are described in the module's docstring."""
        started_ns = time.monotonic_ns()
        self._ticks += 1
        self._looks.begin_tick()
        if not self._keeper.poll(started_ns):
            # After a kill of this process, nobody could restore a knob that has no record.
            _log.error("a held knob has no record: restoring every knob")
            self._restore_all()
        self._apply_change(self._follower.poll(started_ns, self._arrivals.begin_tick()))
        self._start_log.poll(self._node.workloads, pods_known=self._node.pods_known)
        if started_ns >= self._next_refresh_ns:
            self._apply_change(self._follower.refresh_cpus())
            self._next_refresh_ns = started_ns + _REFRESH_NS
            self._node.refresh_targets()
        snapshot = self._node.poll(self._pauses.poll(), self._looks.left_out_ns)
        plan = self._planner.step(snapshot, self._outcomes)
        self._record(snapshot, plan)
        if self._config.settings.mode is Mode.ENFORCE:
            self._outcomes = self._node.execute(plan, self._arrivals.arrived)
        self._arrivals.end_writes()
        in_force = self._planner.settle(self._outcomes)
        self._looks.end_tick(snapshot, self._planner.quiet(plan, in_force))
        self._node.dispatch(snapshot, plan, in_force, self._planner.past_evictions)
        self._published.count(plan, self._outcomes, snapshot.evictions, snapshot.left_out_ns)
        for verdict in plan.verdicts:
            _log.info("%s: %s", verdict.subject, verdict.text)
        if self._cost.poll(started_ns) and self._cost.cost is not None:
            self._node.sampler.shed(self._cost.cost.shed)
        cluster = self._node.cluster_state
        found = self._problems.find(
            self._config.settings, self._node.workloads, plan, self._follower.problem, cluster
        )
        self._sources.update(found, started_ns)
        self._publish(snapshot, plan, in_force, cluster, started_ns)
        if self._learned_store.is_due(started_ns):
            self._learned_store.write(self._planner.learned)
        self._heartbeat.beat()
        if self._history is not None:
            # Last, because it wakes another thread.
            settings = self._config.settings
            self._history.take(
                snapshot, plan, self._outcomes, in_force, self._node.workloads, settings
            )

    def _apply_change(self, change: Change) -> None:
        """Pass new settings or workloads to the planner, which keeps the state of its loops."""
        if change is Change.NOTHING:
            return
        if change is Change.SETTINGS:
            self._planner.reconfigure(self._config.settings, self._node.workloads)
            self._new_settings = True
        else:
            self._planner.set_workloads(self._node.workloads)
        self._new_workloads = True
        self._next_refresh_ns = 0

    def _reload(self) -> None:
        """Reload the configuration on SIGHUP; after an error the old one stays in force."""
        mode = self._config.settings.mode
        applied = self._follower.reload()
        self._published.count_reload("applied" if applied else "failed")
        self._looks.expect(TickReason.RELOAD)
        if applied:
            self._take_over(mode)

    def _follow_policies(self) -> None:
        """Between two ticks, apply the configuration with other policies if they are in force."""
        self._labels.take(self._node.labels, with_reaches=self._node.knows_reaches)
        if self._config.policies:
            self._pauses.poll()
        self._source.clock.paused = self._pauses.policies
        self._source.clock.candidate = self._candidates.poll()
        mode = self._config.settings.mode
        if self._follower.has_other_policies() and self._follower.adapt():
            self._looks.expect(TickReason.RELOAD)
            self._take_over(mode)
        self._begin_trials()

    def _begin_trials(self) -> None:
        cluster = self._node.cluster_state
        profiles = None if cluster is None else cluster.profiles
        if not self._ticks or (profiles is not None and profiles.result is None):
            return  # what is paused and what is compared is not known yet
        digests = self._follower.digest, "" if profiles is None else profiles.digest
        is_whole = not self._pauses.state.entries and self._source.clock.candidate is None
        self._trials.poll(self._config, digests, ready=self._enforces and is_whole)

    def _take_over(self, mode: Mode) -> None:
        """Pass on the configuration that the follower has applied; *mode* is the one before."""
        if self._config.settings.mode is not mode:
            self._outcomes = ()  # the values in them were restored with the change of mode
            self._note_restored()
            self._arrivals.follow(self._enforces)
        self._cost.reconfigure(self._config.budget)
        self._apply_change(Change.SETTINGS)

    def _record(self, snapshot: Snapshot, plan: Plan) -> None:
        if self._recorder is None:
            return
        self._recorder.write(
            Entry(
                snapshot=snapshot,
                outcomes=self._outcomes,
                plan=plan,
                anew=self._new_planner,
                past_evictions=self._initial_evictions if self._new_planner else None,
                learned=self._initial_learned if self._new_planner else (),
                settings=self._config.settings if self._new_settings else None,
                workloads=self._node.workloads if self._new_workloads else None,
            )
        )
        self._new_planner = self._new_settings = self._new_workloads = False

    def _publish(
        self,
        snapshot: Snapshot,
        plan: Plan,
        in_force: InForce,
        cluster: ClusterState | None,
        started_ns: int,
    ) -> None:
        reading = self._node.sampler.reading
        tick_ns = time.monotonic_ns() - started_ns
        self._published.durations_ns.append(tick_ns)
        self._published.report = TickReport(
            time_ns=time.monotonic_ns(),
            mode=self._config.settings.mode,
            age_ns=None if reading is None else reading.age_ns,
            switches=0 if reading is None else reading.switches,
            missed_switches=0 if reading is None else reading.missed_switches,
            unknown_oncpu_ns=0 if reading is None else reading.unknown_oncpu_ns,
            workloads=self._node.workloads,
            left_out=self._node.left_out,
            missing=self._node.missing,
            unmeasured=self._node.unmeasured,
            samples=snapshot.workloads,
            host_pressure_ns=self._node.sampler.host_pressure_ns,
            plan=plan,
            in_force=in_force,
            knobs=self._node.knobs.readings,
            tick_ns=tick_ns,
            ticks=self._ticks,
            overruns=self._overruns,
            failed_ticks=self._failed_ticks,
            restarts=self._heartbeat.restarts,
            cost=self._cost.cost,
            probe_problems=self._node.sampler.problems,
            probe_fallbacks=self._node.sampler.fallbacks,
            config_problem=self._follower.problem,
            config_digest=self._follower.digest,
            policies=self._config.in_force,
            label_origin=self._labels.origin,
            state_dir=self._keeper.state,
            store=self._store.state,
            history=HistoryState() if self._history is None else self._history.state,
            pauses=self._pauses.state,
            services=self._node.services.states(started_ns),
            refused_pushes=self._node.services.refused_pushes,
            links=snapshot.links,
            link_problems=self._node.link_problems,
            measured_by_netns=self._node.sampler.measured_by_netns,
            monitor=self._node.sampler.monitor.state,
            control_group=self._node.resctrl.state,
            io_classes=self._node.knobs.io_classes,
            cores=self._node.cores.state,
            oom=self._node.oom.state,
            blame=snapshot.blame,
            overwritten=self._node.knobs.overwritten,
            routine=self._node.knobs.routine,
            cluster=cluster,
            degraded=self._sources.problems,
            doorbell=self._arrivals.state,
        )

    def _note_restored(self) -> None:
        if self._history is not None:
            self._history.restart()

    def _serve(self, config: Config) -> StatusServer | None:
        if config.http is None:
            return None
        return StatusServer(
            self._published,
            config.http,
            healthy_ns=LONGEST_NS + max(_HEALTHY_TICKS * config.settings.tick_ns, 2 * NS_PER_SEC),
            token_file=config.http_token_file,
            hours=None if self._history is None else self._history.hours,
        )

    def _log_start(self) -> None:
        node = self._node
        self._start_log.begin(self._config.settings, node.workloads, pods_known=node.pods_known)
        for path in self._node.cores.state.idle_partial:
            _log.warning(
                "sched-idle is partial: %s yields to its sibling cgroups only, and a service runs "
                "elsewhere; put best-effort work into a cgroup of its own beside the services",
                path,
            )

    def _close(self) -> None:
        self._arrivals.follow(False)
        self._node.restore()
        self._learned_store.write(self._planner.learned)
        if self._recorder is not None:
            self._recorder.close()
        if self._http is not None:
            self._http.close()
        self._node.close()
        if self._history is not None:
            self._history.close()
        self._store.close()
        self._signals.close()
