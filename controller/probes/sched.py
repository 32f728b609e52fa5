# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Run-queue latency, on-CPU time and blame per workload, from ``bpf/sched.bpf.c``.

Each workload has a slot in the kernel's arrays, and each latency-sensitive workload has a latency
record too. The arrays count since the probe was loaded; this module converts them to counters
since the workload was assigned. Reading needs no system call.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
import itertools
import time

import numpy as np
from numpy.typing import NDArray

from controller.core.indicators.measurement import BUCKETS
from controller.core.looks import Quiet
from controller.core.model import Blame, CgroupId, WorkloadSample
from controller.host.facts import possible_cpus
from controller.probes.bpf.btf import Btf, BtfError
from controller.probes.bpf.libbpf import HashMap, RunTime, run_time
from controller.probes.bpf.loader import Loaded, LoadError, load
from controller.probes.bpf.mapped_array import MappedArray
from controller.probes.counters import Counters
from controller.probes.perf import EventSource
from controller.probes.sched_blame import BlamePairs
from controller.probes.sched_look import WaitLook
from controller.probes.sched_program import (
    ACCOUNT,
    ACCOUNT_WORDS,
    CPU,
    GENERATION,
    LATENCY,
    LATENCY_WORDS,
    sched_spec,
    without_sched_info,
)
from controller.probes.sched_runs import unfinished_runs
from controller.probes.sched_wake import WaitAlarm, no_ring_buffer
from controller.probes.slots import (
    SLOT_IDLE,
    SLOT_SYSTEM,
    SLOT_UNKNOWN,
    Indices,
    Member,
    SampleRows,
    Slots,
    View,
)

__all__ = ("DETAILS", "MAX_SLOTS", "SchedProbe", "SchedReading", "trial")

# Detail that can be shed to reduce the probe's cost, in this order (SHED_* of sched.bpf.c): perf
# counters; blame of single waits (waits are then shared by CPU use); three waits of four.
DETAILS = ("counters", "blame", "sampling")
# Workloads that can be measured separately, plus the probe's three reserved slots.
MAX_SLOTS = 1024
# The words of ``struct account`` in their order, by field of the sample.
_TOTALS = (
    "oncpu_ns",
    "wait_total_ns",
    "wait_inflicted_ns",
    "waits",
    "throttled_ns",
    "wait_host_ns",
)
# Slots that stay free for workloads when cgroups outside of them get some.
_FREE_SLOTS = 128
# Indices of the words that are also counted for workloads without a latency record.
_OTHERS = (0, 1, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedReading:
    """The counters at ``time_ns`` (CLOCK_MONOTONIC); ``age_ns`` is the age of the newest event.

    ``changed`` are the workloads whose sample has other values than in the previous reading.
    ``rearranged`` is true if the list of workloads itself changed. ``missed_switches`` counts
    context switches for which the kernel did not fire the tracepoint: on-CPU time is correct
    nevertheless, but the waits before these switches are not counted. ``unknown_oncpu_ns`` is the
    time that tasks ran whose workload is not known.
    """

    time_ns: int
    age_ns: int
    workloads: tuple[WorkloadSample, ...]
    changed: tuple[CgroupId, ...]
    rearranged: bool
    blame: tuple[Blame, ...]
    system_oncpu_ns: int
    unknown_oncpu_ns: int
    idle_ns: int
    switches: int
    missed_switches: int


class SchedProbe:
    """The loaded probe.

    :param cpus: possible CPUs of the machine.
    :param max_slots: maximum number of workloads plus three; three slots are reserved.
    :param max_latency: maximum number of latency-sensitive workloads.
    :param blame: count which workload ran during each wait.
    :param counters: perf events by field of ``WorkloadSample``.
    :param typed: try typed arguments first: plain loads are cheaper than bpf_probe_read_kernel.
        Both variants count the same.
    :param wake: have an ``alarm`` if the kernel can tell of long waits.
    :param btf: BTF of the running kernel; read if not given.
    :raises LoadError: the program cannot be loaded.
    :raises BtfError: the kernel's BTF lacks a struct or member that the program reads.
    """

    def __init__(
        self,
        *,
        cpus: int,
        max_slots: int = MAX_SLOTS,
        max_latency: int = 256,
        blame: bool = True,
        counters: Mapping[str, EventSource] | None = None,
        typed: bool = True,
        btf: Btf | None = None,
        wake: bool = True,
    ) -> None:
        btf = btf or Btf()
        # Why waits are timed with wakeup stamps; empty: the kernel times them itself.
        self.fallback = without_sched_info(btf)
        # Why the kernel cannot tell of long waits; empty: it can.
        self.no_alarm = no_ring_buffer() if wake else "not requested"
        spec = sched_spec(
            btf,
            cpus=cpus,
            max_slots=max_slots,
            max_latency=max_latency,
            blame=blame,
            counters=counters,
            wake=not self.no_alarm,
        )
        self._loaded: Loaded = load(replace(spec, typed=typed and spec.typed))
        fds = self._loaded.map_fds
        self._cpus = MappedArray(fds["cpus"], CPU, cpus)
        # since, slot, sync_clock and sync_mono
        self._runs = self._cpus.values.view(np.int64).reshape(cpus, -1)[:, :4]
        accounts = MappedArray(fds["accounts"], ACCOUNT, max_slots * cpus)
        self._accounts = accounts.values["word"].reshape(max_slots, cpus, ACCOUNT_WORDS)
        latencies = MappedArray(fds["latencies"], LATENCY, max_latency * cpus)
        self._latencies = latencies.values["bucket"].reshape(max_latency, cpus, LATENCY_WORDS)
        blames = MappedArray(fds["blame"], np.dtype("u8"), max_latency * max_slots)
        self._blame = BlamePairs(blames.values.reshape(max_latency, max_slots))
        self._generation = MappedArray(fds["generation"], GENERATION, 1)
        self._changes = MappedArray(fds["cgroup_changes"], np.dtype("u8"), 1)
        self._slot_of_cgroup = HashMap(fds["slot_of_cgroup"])
        self.alarm = None if self.no_alarm else WaitAlarm(fds, max_latency)
        self._slots = Slots(max_slots, max_latency)
        self._unknown: set[CgroupId] = set()
        # CPU time of cgroups outside all workloads that have no slot any more.
        self._outside_ns = 0
        self._max_unknown = spec.defines["MAX_CGROUPS"] - max_slots
        # The totals of the last poll, and those when the slot was assigned.
        self._totals = np.zeros((max_slots, len(_TOTALS)), np.int64)
        self._base = np.zeros((max_slots, len(_TOTALS)), np.int64)
        # Slots whose totals changed since the last samples, and the members of those samples.
        self._active = np.zeros(max_slots, np.bool_)
        self._view = self._slots.view
        self._waits = np.zeros((max_latency, BUCKETS), np.int64)
        self._waits_raw = np.zeros((max_latency, BUCKETS), np.uint32)
        words = self._accounts[:, :, : len(_TOTALS)]
        self._look = WaitLook(words, self._latencies, self._totals, self._waits_raw)
        self._sensitive = SampleRows(self._fields_of_sensitive, late=True)
        self._others = SampleRows(self._fields_of_others)
        self._shed = 0
        self._counters = (
            Counters(counters, self._loaded, slots=max_slots, running=self.running)
            if counters
            else None
        )

    @property
    def untyped(self) -> str:
        """Why kernel memory is read with bpf_probe_read_kernel; empty: with plain loads."""
        return self._loaded.untyped

    @property
    def running(self) -> NDArray[np.uint64]:
        """The slot that runs on each CPU now, by CPU number; the kernel writes this memory."""
        slots: NDArray[np.uint64] = self._cpus.values["slot"]
        return slots

    @property
    def cgroup_changes(self) -> int:
        """How often a cgroup was created, removed or renamed since the probe was loaded."""
        return int(self._changes.values[0])

    def slots_of(self, cgroups: Iterable[CgroupId]) -> list[int]:
        """Return the slots of those of *cgroups* that have one."""
        wanted = set(cgroups)
        return [member.slot for member in self._slots.view.members if member.cgroup in wanted]

    @property
    def free_slots(self) -> int:
        """Number of slots without a workload; for 2 s after a release a slot is not reused."""
        return self._slots.free

    def has_slot(self, cgroup: CgroupId) -> bool:
        """Return whether *cgroup* has a slot."""
        return self._slots.get(cgroup) is not None

    def assign(self, cgroup: CgroupId, *, latency: bool, now_ns: int) -> bool:
        """Start to count for *cgroup*, with histogram and blame if *latency*.

        A cgroup that is assigned already keeps its counters. One that lacks a latency record gets
        it here when one is free.

        :returns: whether the cgroup has all that it needs now: a slot, and with *latency* a latency
            record. It may have got the slot only.
        """
        known = self._slots.get(cgroup)
        if known is not None and known.outside:
            self.release(cgroup, now_ns=now_ns)
            known = None
        if known is not None:
            return not latency or known.record is not None or self._add_record(known, now_ns)
        member = self._reserve(cgroup, latency=latency, now_ns=now_ns)
        return member is not None and (not latency or member.record is not None)

    def set_outside(self, cgroups: Iterable[CgroupId], workloads: int, *, now_ns: int) -> None:
        """Count the blame of exactly *cgroups*, which hold no workload and are in none.

        Their CPU time stays a part of ``system_oncpu_ns``. The last of them get no slot, and are
        counted with the system, where *workloads* may need it: so many there are.
        """
        most = max(0, MAX_SLOTS - _FREE_SLOTS - workloads)
        wanted = dict.fromkeys(itertools.islice(cgroups, most))
        for member in self._slots.view.members:
            if member.outside and member.cgroup not in wanted:
                self.release(member.cgroup, now_ns=now_ns)
        for cgroup in wanted:
            if cgroup not in self._unknown and self._slots.get(cgroup) is None:
                self._reserve(cgroup, latency=False, now_ns=now_ns, outside=True)

    def _reserve(
        self, cgroup: CgroupId, *, latency: bool, now_ns: int, outside: bool = False
    ) -> Member | None:
        running = set(self.running.tolist())
        member = self._slots.reserve(cgroup, latency=latency, now_ns=now_ns, running=running)
        if member is None:
            return None
        member = member._replace(outside=outside)
        slot = member.slot
        # No CPU runs this slot, so no unfinished run has to be added.
        counted = self._accounts[slot, :, : len(_TOTALS)].sum(axis=0, dtype=np.int64)
        np.maximum(self._totals[slot], counted, out=self._totals[slot])
        self._base[slot] = self._totals[slot]
        if self._counters is not None:
            self._counters.rebase(slot)
        self._blame.rebase(slot, None)
        self._unknown.discard(cgroup)
        self._enter(member)
        return member

    def _add_record(self, known: Member, now_ns: int) -> bool:
        member = self._slots.reserve_record(known, now_ns=now_ns)
        if member is not None:
            self._enter(member)
        return member is not None

    def _enter(self, member: Member) -> None:
        """Count for *member* from now on; its latency record starts at zero."""
        record = member.record
        if record is not None:
            self._blame.rebase(None, record)
            self._waits_raw[record] = self._raw_waits(np.array([record]))[0]
            self._waits[record] = 0
        self._slots.add(member)
        latency = 0 if record is None else record + 1
        self._slot_of_cgroup.set(member.cgroup.id, member.slot, latency)
        self._generation.values["updates"] += 1

    def set_unknown(self, cgroup: CgroupId) -> None:
        """Count what *cgroup*, which has no slot, does as unknown and not as system.

        The kernel's map has room for some 7,000 of such cgroups; the others count as system.
        """
        if cgroup in self._unknown or len(self._unknown) >= self._max_unknown:
            return
        known = self._slots.get(cgroup)
        if known is not None and known.outside:
            self.release(cgroup, now_ns=time.monotonic_ns())
        self._unknown.add(cgroup)
        self._slot_of_cgroup.set(cgroup.id, SLOT_UNKNOWN, 0)
        self._generation.values["updates"] += 1

    def release(self, cgroup: CgroupId, *, now_ns: int) -> None:
        """Stop counting for *cgroup*; its slot is reused after 2 s."""
        member = self._slots.remove(cgroup, now_ns=now_ns)
        if member is not None:
            self._blame.remove(member.slot, member.record)
            if member.outside:
                self._outside_ns += self._oncpu_ns([member.slot])
        elif cgroup not in self._unknown:
            return
        self._unknown.discard(cgroup)
        self._slot_of_cgroup.delete(cgroup.id)
        self._generation.values["updates"] += 1

    def counted(self) -> dict[str, int]:
        """Return the perf counters summed over all slots, including system and idle, up to now."""
        return {} if self._counters is None else self._counters.machine()

    def shed(self, details: int) -> None:
        """Shed the first *details* of ``DETAILS`` and restore the others.

        While counters are shed, their fields are ``None``; restored, they start at zero.
        """
        had_counters = not self._shed & 1
        self._shed = (1 << details) - 1
        self._cpus.values["shed"] = self._shed
        self._active[:] = True  # all samples gain or lose the fields of the counters
        if self._counters is not None and not self._shed and not had_counters:
            self._counters.reset()

    def poll(self) -> SchedReading:
        """Return the counters of all assigned workloads."""
        view = self._slots.view
        now_ns, newest_ns = self._read_totals(view.slot_count)
        if self._counters is not None and not self._shed:
            self._active |= self._counters.refresh(view.slot_count, now_ns)
        self._look.rebase(now_ns)
        if self.alarm is not None:
            self.alarm.disarm()
        rearranged, self._view = view is not self._view, view
        sensitive, others = view.rows_of(self._active[: view.slot_count].nonzero()[0])
        self._active[:] = False
        workloads = (
            *self._sensitive.update(view.sensitive, sensitive),
            *self._others.update(view.others, others),
        )
        return SchedReading(
            time_ns=now_ns,
            age_ns=max(0, now_ns - newest_ns),
            workloads=workloads,
            changed=self._changed(view),
            rearranged=rearranged,
            blame=self._blame.poll(view, now_ns, view.records[self._sensitive.refreshed]),
            system_oncpu_ns=int(self._totals[SLOT_SYSTEM, 0])
            + self._outside_ns
            + self._oncpu_ns(view.outside),
            unknown_oncpu_ns=int(self._totals[SLOT_UNKNOWN, 0]),
            idle_ns=int(self._totals[SLOT_IDLE, 0]),
            switches=int(self._cpus.values["switches"].sum()),
            missed_switches=int(self._cpus.values["missed"].sum()),
        )

    def waits_more(self, quiet: Quiet) -> bool:
        """Return whether services have exceeded a limit of *quiet* since the last ``poll``."""
        return self._look.exceeds(self._slots.view, quiet)

    def arm(self, quiet: Quiet) -> None:
        """Have the kernel tell, once, when a service exceeds what *quiet* stands for.

        It is not told while a tick is on its way, and what it has told is taken.
        """
        if self.alarm is not None and not self.alarm.is_armed:
            self.alarm.arm(*self._look.left(self._slots.view, quiet))

    @property
    def cost(self) -> RunTime | None:
        """The probe's runs and run time so far; ``None`` unless kernel.bpf_stats_enabled is 1."""
        return run_time(self._loaded.link_fds)

    def close(self) -> None:
        """Detach the probe."""
        self._loaded.close()

    def _read_totals(self, slot_count: int) -> tuple[int, int]:
        """Update the totals of the first *slot_count* slots; return (now, newest event) in ns.

        Unfinished runs are added up to now. If a CPU switches between the two reads, its run is
        missing here and added in the next tick. It is never counted twice, as totals do not fall.
        """
        # A sum over the CPUs; sum() takes three times as long for six words per CPU.
        totals = np.einsum("scw->sw", self._accounts[:slot_count, :, : len(_TOTALS)])
        now_ns = time.monotonic_ns()
        newest_ns, runs = unfinished_runs(self._runs, now_ns)
        for slot, length_ns in runs:
            if slot < slot_count:
                totals[slot, 0] += length_ns
        (grown,) = (totals.ravel() > self._totals[:slot_count].ravel()).nonzero()
        self._active[grown // len(_TOTALS)] = True
        np.maximum(self._totals[:slot_count], totals, out=self._totals[:slot_count])
        return now_ns, newest_ns

    def _oncpu_ns(self, slots: list[int]) -> int:
        """Return the time that *slots* ran since they were assigned."""
        return int((self._totals[slots, 0] - self._base[slots, 0]).sum())

    def _changed(self, view: View) -> tuple[CgroupId, ...]:
        return (
            *(view.sensitive[row].cgroup for row in self._sensitive.changed),
            *(view.others[row].cgroup for row in self._others.changed),
        )

    def _fields_of_sensitive(self, rows: NDArray[np.intp]) -> dict[str, Iterable[object]]:
        slots = self._view.sensitive_slots[rows]
        return self._fields_of(slots, range(len(_TOTALS))) | {
            "runq_histogram": self._histograms(self._view.records[rows])
        }

    def _fields_of_others(self, rows: NDArray[np.intp]) -> dict[str, Iterable[object]]:
        return self._fields_of(self._view.other_slots[rows], _OTHERS)

    def _fields_of(self, slots: Indices, totals: Iterable[int]) -> dict[str, Iterable[object]]:
        """Return the counts of *slots* since assignment: the words *totals* and perf counters."""
        counts = (self._totals[slots] - self._base[slots]).T.tolist()
        fields = {_TOTALS[column]: counts[column] for column in totals}
        if self._counters is None or self._shed:
            return fields
        gains = self._counters.gains(slots).T.tolist()
        return fields | dict(zip(self._counters.names, gains, strict=True))

    def _raw_waits(self, records: Indices) -> NDArray[np.uint32]:
        waits: NDArray[np.uint32] = self._latencies[records, :, :BUCKETS]
        total: NDArray[np.uint32] = waits.sum(axis=1, dtype=np.uint32)
        return total

    def _histograms(self, records: Indices) -> list[tuple[int, ...]]:
        """Update the histograms of *records* and return them."""
        raw = self._raw_waits(records)
        # The kernel's 32-bit buckets wrap around; so does the unsigned difference of two readings.
        self._waits[records] += raw - self._waits_raw[records]
        self._waits_raw[records] = raw
        return list(map(tuple, self._waits[records].tolist()))


def trial() -> tuple[bool, str]:
    """Load the probe once and return (success, detail), for ``sweetpoint doctor``."""
    try:
        probe = SchedProbe(cpus=max(possible_cpus()) + 1, max_slots=8, max_latency=1)
    except (BtfError, LoadError, OSError) as error:
        return False, str(error)
    probe.close()
    how = f"slower reads, {probe.untyped}" if probe.untyped else "plain loads of kernel memory"
    wakes = f"; looks only, {probe.no_alarm}" if probe.no_alarm else ""
    return True, f"compiled, loaded and attached; {probe.fallback or how}{wakes}"
