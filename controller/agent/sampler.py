# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""All probes of this host, combined into one ``Snapshot`` per tick."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain
import logging
import time
from typing import TypeVar

from controller.core.looks import Quiet
from controller.core.model import (
    CgroupId,
    Channel,
    Outside,
    QosClass,
    Snapshot,
    Workload,
    WorkloadSample,
)
from controller.core.settings import Settings
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout, possible_cpus
from controller.host.memory import find_memory
from controller.probes import join
from controller.probes.bpf.btf import BtfError
from controller.probes.bpf.libbpf import RunTime
from controller.probes.bpf.loader import LoadError, prepare
from controller.probes.cgroup_moves import MoveProbe, Moves, moves_spec
from controller.probes.cgroup_usage import UsageMeter
from controller.probes.counters import choose_sources
from controller.probes.disk import DiskProbe
from controller.probes.memory_strain import StrainMeter
from controller.probes.net import NetProbe, Traffic
from controller.probes.netns import NetnsMeter
from controller.probes.outside import OutsideFinder
from controller.probes.pressure_alarm import PressureAlarm
from controller.probes.psi import PressureMeter
from controller.probes.sched import SchedProbe, SchedReading
from controller.probes.slot_shares import in_order, to_release
from controller.probes.steal import StealMeter
from controller.reconcilers.resctrl.monitor import ResctrlMonitor
from controller.workloads.changes import WorkloadDiff, diff_workloads

__all__ = ("Sampler",)

_log = logging.getLogger(__name__)

_Probe = TypeVar("_Probe")

# How often slots are shared out while some workload has none.
_RETRY_NS = NS_PER_SEC
# How often cgroups outside all workloads are looked for, if some were made or removed.
_OUTSIDE_NS = 10 * NS_PER_SEC
# CPU time of workloads without a slot, from one time to the next, that is worth a search for them.
_UNKNOWN_NS = 1_000_000


class Sampler:
    """The probes of this host. Not thread-safe: for the control thread only.

    A probe that cannot be loaded is listed in ``problems`` with the reason, and the others are
    used without it. A probe that works, but not by its preferred method, is listed in
    ``fallbacks``. ``reading`` is the last reading of the sched probe. ``measured_by_netns`` are
    the workloads whose traffic is known by network namespace only, which is less exact and up to
    a second old.

    :param counters: the source of each hardware counter, ``auto`` or ``off`` included.
    """

    def __init__(
        self,
        layout: CgroupLayout,
        counters: Mapping[str, str],
        monitor: ResctrlMonitor,
        follows: Callable[[Workload], bool] = lambda _: False,
    ) -> None:
        self._layout = layout
        self._follows = follows
        self.monitor = monitor
        self.problems: dict[str, str] = {}
        self.fallbacks: dict[str, str] = {}
        self.reading: SchedReading | None = None
        self.measured_by_netns: frozenset[CgroupId] = frozenset()
        cpus = max(possible_cpus()) + 1
        sources, uncounted = choose_sources(counters)
        self._log_uncounted(counters, uncounted)
        self.sched = self._load("sched", lambda: SchedProbe(cpus=cpus, counters=sources))
        if self.sched is not None and self.sched.fallback:
            self.fallbacks["sched"] = self.sched.fallback
            _log.warning("probe sched: %s", self.sched.fallback)
        if self.sched is not None and self.sched.no_alarm:
            self.fallbacks["alarm"] = self.sched.no_alarm
            _log.warning("probe sched: no tick before it is due, %s", self.sched.no_alarm)
        self._net = self._load("net", lambda: NetProbe(layout, cpus=cpus))
        self._disk: DiskProbe | None = None
        self._moves: MoveProbe | None = None
        self._netns = NetnsMeter(layout)
        self._pressure = PressureMeter(layout.unified)
        self.pressure_alarm = PressureAlarm(layout.unified, self._tell_no_alarm)
        memory = find_memory(layout.unified)
        self._strain = StrainMeter(memory)
        self._usage = UsageMeter(layout.unified, memory)
        self._steal = StealMeter()
        self._join = join.Join()
        self._workloads: tuple[Workload, ...] = ()
        self._unmeasured: tuple[WorkloadSample, ...] = ()
        # The workloads by cgroup, and those for which the sched probe lacked a slot or a latency
        # record.
        self._known: dict[CgroupId, Workload] = {}
        self._waiting: dict[CgroupId, Workload] = {}
        self._not_taken: set[CgroupId] = set()
        self._not_yet: tuple[Workload, ...] = ()
        self._changed_ns: dict[CgroupId, int] = {}
        self._retry_due_ns = 0
        self._unknown_ns = 0
        self._finder = OutsideFinder(layout)
        self._outside: tuple[Outside, ...] = ()
        self._outside_due_ns = 0
        self._outside_changes: int | None = None

    @property
    def host_pressure_ns(self) -> Mapping[str, int]:
        """PSI time in which some task of this host waited, by resource; empty without PSI."""
        host: dict[str, int | None] = self._pressure.host._asdict()
        return {resource: value for resource, value in host.items() if value is not None}

    @property
    def cgroup_changes(self) -> int | None:
        """A count that changes when cgroups are made or removed; ``None`` if it is unknown."""
        return None if self.sched is None else self.sched.cgroup_changes

    def reconfigure(self, settings: Settings) -> None:
        """Measure what only the profiles of *settings* ask for."""
        self._strain.reconfigure(settings)
        self._usage.reconfigure(settings)
        specs = chain.from_iterable(each.indicators for each in settings.profiles.values())
        asked = any(spec.channel is Channel.IO for spec in specs)
        if asked and self._disk is None and "disk" not in self.problems:
            self._disk = self._load("disk", lambda: DiskProbe(self._layout))
            self._set_disk_workloads()
        elif not asked and self._disk is not None:
            self._disk.close()
            self._disk = None

    def set_workloads(self, workloads: tuple[Workload, ...]) -> None:
        """Measure exactly *workloads* from now on."""
        before, self._workloads = self._workloads, workloads
        if self.sched is None:
            self._unmeasured = tuple(WorkloadSample(w.cgroup) for w in workloads)
        self._pressure.set_workloads(workloads)
        self.pressure_alarm.set_workloads(workloads)
        self._strain.set_workloads(workloads)
        self._usage.set_workloads(workloads)
        self.monitor.set_workloads(workloads)
        self._netns.set_workloads(workloads)
        self._set_moves_workloads()
        self._set_disk_workloads()
        if self.sched is not None:
            # Before a workload in them; how many get a slot depends on the workloads.
            self._find_outside(self.sched, time.monotonic_ns(), anew=True)
            self._assign(self.sched, diff_workloads(before, workloads))
        self._set_net_workloads()

    def set_waiting(self, workloads: Iterable[Workload]) -> None:
        """Count what *workloads*, best-effort ones that are not taken in yet, do as unknown."""
        if self.sched is None:
            return
        waiting = tuple(workloads)
        if waiting != self._not_yet:
            self._not_yet = waiting
            self._find_outside(self.sched, time.monotonic_ns())
        before, self._not_taken = self._not_taken, {each.cgroup for each in waiting}
        for cgroup in before - self._not_taken:
            self.sched.release(cgroup, now_ns=0)
        for cgroup in self._not_taken - before:
            self.sched.set_unknown(cgroup)

    @property
    def ran(self) -> Collection[CgroupId] | None:
        """The workloads that used a CPU, or waited for one, between the last two polls.

        ``None``: that is not known of each.
        """
        reading = self.reading
        if reading is None or reading.rearranged or self._waiting:
            return None
        return reading.changed

    @property
    def unmeasured(self) -> Mapping[QosClass, int]:
        """Number of workloads that the sched probe does not measure, or without a histogram."""
        missing = self._workloads if self.sched is None else self._waiting.values()
        return Counter(each.qos for each in missing)

    def poll(self) -> Snapshot:
        """Read all probes."""
        reading = self.reading = None if self.sched is None else self.sched.poll()
        now_ns = time.monotonic_ns() if reading is None else reading.time_ns
        traffic, sent = self._traffic(now_ns)
        moved = None if reading is None else (*reading.changed, *sent)
        if self.sched is not None and reading is not None:
            if now_ns >= self._outside_due_ns and self._outside_changes != self.cgroup_changes:
                self._find_outside(self.sched, now_ns)
            self._changed_ns.update(dict.fromkeys(reading.changed, now_ns))
            if self._waiting and now_ns >= self._retry_due_ns:
                self._share_slots(self.sched, reading)
                self._set_net_workloads()
        if self.pressure_alarm.take():
            self._pressure.expire()
        self._pressure.poll(now_ns, moved)
        self._strain.poll(self._pressure.read_ns, moved)
        self._usage.poll(now_ns, moved)
        return Snapshot(
            time_ns=now_ns,
            age_ns=None if reading is None else reading.age_ns,
            workloads=self._join(
                self._unmeasured if reading is None else reading.workloads,
                None if reading is None or reading.rearranged else reading.changed,
                join.traffic(traffic, sent),
                join.pressure(self._pressure.workloads, self._pressure.changed),
                join.strain(self._strain.workloads, self._strain.changed),
                join.usage(self._usage.workloads, self._usage.changed),
                *self._disk_tables(now_ns),
                join.cache(self.monitor.poll(now_ns)),
            ),
            blame=() if reading is None else reading.blame,
            system_oncpu_ns=None if reading is None else reading.system_oncpu_ns,
            unknown_oncpu_ns=None if reading is None else reading.unknown_oncpu_ns,
            idle_ns=None if reading is None else reading.idle_ns,
            steal_ns=self._steal.poll(now_ns),
            pressure_ns=self._pressure.read_ns,
            outside=self._outside,
        )

    def _disk_tables(self, now_ns: int) -> Iterator[join.Table]:
        if self._disk is not None:
            rows = self._disk.poll(now_ns)
            yield join.disks(rows, self._disk.changed)

    def _find_outside(self, probe: SchedProbe, now_ns: int, *, anew: bool = False) -> None:
        """Measure the cgroups outside all workloads, as culprits; *anew*: also if all are known."""
        self._outside_due_ns = now_ns + _OUTSIDE_NS
        self._outside_changes = self.cgroup_changes
        found = self._finder.find((*self._workloads, *self._not_yet))
        if anew or found != self._outside:
            self._outside = found
            probe.set_outside((each.cgroup for each in found), len(self._workloads), now_ns=now_ns)

    def _traffic(self, now_ns: int) -> tuple[Mapping[CgroupId, Traffic], Collection[CgroupId]]:
        """Return the traffic by cgroup, and the cgroups whose traffic changed.

        Measured per cgroup or, where that is not possible, per network namespace.
        """
        rows: Mapping[CgroupId, Traffic] = {}
        changed: Collection[CgroupId] = ()
        if self._net is not None:
            rows, changed = self._net.poll(now_ns), self._net.changed
        by_netns = self._netns.poll(now_ns, rows)
        self.measured_by_netns = frozenset(c for c in by_netns if c not in rows)
        if by_netns:
            rows = {**by_netns, **rows}
        return rows, (*changed, *self._netns.changed)

    def waits_more(self, quiet: Quiet) -> bool:
        """Return whether services have exceeded a limit of *quiet* since the last ``poll``."""
        return self.sched is None or self.sched.waits_more(quiet)

    def prepare_moves(self) -> None:
        """Compile the probe behind ``moves``, which takes most of a second, for ``load_moves``."""
        if self._moves is None and "members" not in self.problems:
            self._load("members", lambda: prepare(moves_spec(self._layout)))

    def load_moves(self) -> None:
        """Load the probe behind ``moves``, in 20 ms if it was prepared.

        On demand only, because the probe makes every fork on the host a little longer.
        """
        if self._moves is None and "members" not in self.problems:
            self._moves = self._load("members", lambda: MoveProbe(self._layout))
            self._set_moves_workloads()

    def moves(self) -> Moves | None:
        """Return the tasks that entered best-effort workloads; ``None`` without the probe."""
        return None if self._moves is None else self._moves.poll()

    def costs(self) -> dict[str, RunTime]:
        """Return the run time of each probe's BPF programs, as far as the kernel counts it."""
        probes = {"sched": self.sched, "net": self._net, "disk": self._disk}
        costs = {name: probe.cost for name, probe in probes.items() if probe is not None}
        return {name: cost for name, cost in costs.items() if cost is not None}

    def shed(self, details: int) -> None:
        """Shed the first *details* details of the sched probe, and measure the others."""
        if self.sched is not None:
            self.sched.shed(details)

    def close(self) -> None:
        """Detach the probes."""
        for probe in (
            self._net, self._netns, self._disk, self._pressure, self.pressure_alarm, self.sched,
            self._moves,
        ):  # fmt: skip
            if probe is not None:
                probe.close()

    def _assign(self, probe: SchedProbe, change: WorkloadDiff) -> None:
        before = set(self.unmeasured)
        now_ns = time.monotonic_ns()
        change = change.by_fields("cgroup", "qos")
        for workload in change.removed:
            del self._known[workload.cgroup]
            self._waiting.pop(workload.cgroup, None)
            self._release(probe, workload, now_ns)
        self._known |= {workload.cgroup: workload for workload in change.added}
        self._waiting |= {workload.cgroup: workload for workload in change.added}
        self._assign_waiting(probe, now_ns)
        self._log_unmeasured(before)

    def _share_slots(self, probe: SchedProbe, reading: SchedReading) -> None:
        """Assign what has become free, and take slots for the workloads that still wait."""
        before = set(self.unmeasured)
        now_ns = reading.time_ns
        self._retry_due_ns = now_ns + _RETRY_NS
        self._assign_waiting(probe, now_ns)
        ran_ns = reading.unknown_oncpu_ns - self._unknown_ns
        self._unknown_ns = reading.unknown_oncpu_ns
        measured = {c: w for c, w in self._known.items() if probe.has_slot(c)}
        for workload in to_release(
            [w for w in self._waiting.values() if w.cgroup not in measured],
            measured,
            self._changed_ns,
            free=probe.free_slots,
            now_ns=now_ns,
            rotate=ran_ns > _UNKNOWN_NS,
        ):
            self._release(probe, workload, now_ns)
            self._waiting[workload.cgroup] = workload
            probe.set_unknown(workload.cgroup)
        self._log_unmeasured(before)

    def _assign_waiting(self, probe: SchedProbe, now_ns: int) -> None:
        """Assign slots and latency records to waiting workloads as far as there are any."""
        measured = (w for c, w in self._known.items() if c not in self._waiting)
        waiting = in_order(self._waiting.values(), measured)
        self._waiting = {}
        full = False
        for workload in waiting:
            latency = workload.qos is QosClass.LS
            if (latency or not full) and probe.assign(
                workload.cgroup, latency=latency, now_ns=now_ns
            ):
                self._changed_ns[workload.cgroup] = now_ns
                continue
            full = full or not latency
            self._waiting[workload.cgroup] = workload
            if workload.qos is QosClass.BE:
                probe.set_unknown(workload.cgroup)

    def _release(self, probe: SchedProbe, workload: Workload, now_ns: int) -> None:
        self._changed_ns.pop(workload.cgroup, None)
        probe.release(workload.cgroup, now_ns=now_ns)

    def _log_unmeasured(self, before: Collection[QosClass]) -> None:
        """Log once when a class gets its first unmeasured workload, or when all are measured."""
        now = self.unmeasured
        if not now and before:
            _log.info("all workloads are measured again")
        elif now.keys() - before:
            counts = ", ".join(f"{number} {qos}" for qos, number in sorted(now.items()))
            _log.warning(
                "workloads are not measured: %s; the sched probe has no free slot or histogram for "
                "them (sweetpoint_workloads_unmeasured has the present numbers)",
                counts,
            )

    def _set_net_workloads(self) -> None:
        # As many as the sched probe measures, which prefers services.
        if self._net is not None:
            probe = self.sched
            workloads = self._workloads
            if probe is not None and self._waiting:
                workloads = tuple(w for w in workloads if probe.has_slot(w.cgroup))
            self._net.set_workloads(workloads)

    def _set_disk_workloads(self) -> None:
        if self._disk is not None:
            self._disk.set_workloads(self._workloads)

    def _set_moves_workloads(self) -> None:
        if self._moves is not None:
            self._moves.set_workloads(
                w for w in self._workloads if w.qos is QosClass.BE or self._follows(w)
            )

    def _log_uncounted(self, wanted: Mapping[str, str], reasons: Mapping[str, str]) -> None:
        for counter, reason in reasons.items():
            # Most virtual machines have no hardware counters, so a missing counter is a problem
            # only if the configuration names a source for it.
            if wanted[counter] != "auto":
                self.problems[f"counter {counter}"] = reason
            level = logging.INFO if wanted[counter] == "auto" else logging.ERROR
            _log.log(level, "counter %s is off: %s", counter, reason)

    def _tell_no_alarm(self, reason: str) -> None:
        """Tell the first *reason* for which there is no tick as soon as pressure is high."""
        if "pressure_alarm" not in self.fallbacks:
            self.fallbacks["pressure_alarm"] = reason
            _log.warning("probe pressure: no tick before it is due, %s", reason)

    def _load(self, name: str, make: Callable[[], _Probe]) -> _Probe | None:
        try:
            return make()
        except (BtfError, LoadError, OSError) as error:
            self.problems[name] = str(error)
            _log.error("probe %s is off: %s", name, error)
            return None
