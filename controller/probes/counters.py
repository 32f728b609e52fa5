# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Perf counters per slot: opens the events for ``bpf/include/counters.h`` and reads the sums.

The BPF program adds to the sums whenever a CPU switches to another workload. Once a second the
sums are also updated for workloads that stay on a CPU: a BPF program is run on each CPU that is
not idle (BPF_PROG_TEST_RUN on a given CPU, Linux kernel commit 1b4d60ec162f (in v5.10): 2.6 us on
the own CPU, 11 us on another busy one). In the same step the events of new on-line CPUs are opened.
"""

from collections.abc import Mapping
import ctypes
import errno
import logging
import os
import struct
import time

import numpy as np
from numpy.typing import NDArray

from controller.host.facts import online_cpus
from controller.host.os_errors import reason
from controller.probes.bpf.libbpf import libbpf
from controller.probes.bpf.loader import Loaded
from controller.probes.bpf.mapped_array import MappedArray
from controller.probes.perf import EventSource, SourceError, find_source, open_event
from controller.probes.slots import SLOT_IDLE

__all__ = ("AUTO", "COUNTERS", "Counters", "choose_sources", "counter_maps")

_log = logging.getLogger(__name__)

# Field of WorkloadSample -> the perf event that ``auto`` stands for.
AUTO: Mapping[str, str] = {
    "cycles": "cycles",
    "instructions": "instructions",
    "llc_misses": "cache-misses",
    "llc_references": "cache-references",
    "stalled_cycles": "stalled-cycles-backend",
}
COUNTERS = tuple(AUTO)
_REFRESH_NS = 1_000_000_000
_CPU = np.dtype([("reads", "u8"), ("dead", "u8"), ("word", "u8", 22)])
_TEST_RUN_ON_CPU = 1


class _TestRunOptions(ctypes.Structure):
    """libbpf's ``struct bpf_test_run_opts``."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("data_in", ctypes.c_void_p),
        ("data_out", ctypes.c_void_p),
        ("data_size_in", ctypes.c_uint32),
        ("data_size_out", ctypes.c_uint32),
        ("ctx_in", ctypes.c_void_p),
        ("ctx_out", ctypes.c_void_p),
        ("ctx_size_in", ctypes.c_uint32),
        ("ctx_size_out", ctypes.c_uint32),
        ("retval", ctypes.c_uint32),
        ("repeat", ctypes.c_int),
        ("duration", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("cpu", ctypes.c_uint32),
        ("batch_size", ctypes.c_uint32),
    )


def choose_sources(wanted: Mapping[str, str]) -> tuple[dict[str, EventSource], dict[str, str]]:
    """Return (sources that this host can count, reasons for those it cannot), by counter.

    A counter that only some CPUs have is not used: its sums would be too small.

    :param wanted: a source, ``auto`` or ``off`` by name of ``COUNTERS``; a counter that is off is
        in neither result.
    """
    found: dict[str, EventSource] = {}
    reasons: dict[str, str] = {}
    for name in COUNTERS:
        text = wanted.get(name, "off")
        if text == "off":
            continue
        try:
            source = find_source(AUTO[name] if text == "auto" else text)
            for cpu in online_cpus():
                os.close(open_event(source, cpu))
        except (SourceError, OSError) as error:
            why = reason(error)
            reasons[name] = why if text != "auto" else f"no hardware counter here ({why})"
        else:
            found[name] = source
    return found, reasons


def counter_maps(sources: Mapping[str, EventSource]) -> tuple[str, ...]:
    """Return the names of the maps that the program has for *sources*."""
    if not sources:
        return ()
    return ("counters", "counted_cpus", "events")


class Counters:
    """The sums per slot, updated once a second.

    :param loaded: the program, with the maps of ``counter_maps`` and the function
        ``count_running``.
    :param slots: size of the kernel's arrays.
    :param running: the slot that runs on each CPU now, by CPU number; the kernel writes it.
    """

    def __init__(
        self,
        sources: Mapping[str, EventSource],
        loaded: Loaded,
        *,
        slots: int,
        running: NDArray[np.uint64],
    ) -> None:
        cpus = len(running)
        self.names = tuple(sources)
        self._sources = tuple(sources.values())
        fds = loaded.map_fds
        self._events = fds["events"]
        self._program = loaded.program_fds["count_running"]
        self._libbpf = libbpf()
        sums = MappedArray(fds["counters"], np.dtype("u8"), cpus * slots * len(sources))
        self._sums = sums.values.reshape(cpus, slots, len(sources))
        self._cpus = MappedArray(fds["counted_cpus"], _CPU, cpus)
        self._running = running
        self._counted: set[int] = set()
        self._refused: set[int] = set()
        self._refreshed_ns = 0
        self._base = np.zeros((slots, len(sources)), np.int64)
        self._totals = np.zeros((slots, len(sources)), np.int64)
        self._changed = np.zeros(slots, np.bool_)
        # Why count_running cannot be run; empty: it can.
        self._run_problem = ""
        self._open_new_cpus()

    def rebase(self, slot: int) -> None:
        """Let *slot* count from zero, for a new owner."""
        self._base[slot] = self._totals[slot] = self._sum(slot, slot + 1)[0]

    def refresh(self, used: int, now_ns: int) -> NDArray[np.bool_]:
        """Update the totals of the first *used* slots, once a second.

        :returns: by slot, whether its totals changed since the last call.
        """
        if now_ns - self._refreshed_ns >= _REFRESH_NS:
            self._refreshed_ns = now_ns
            self._open_new_cpus()
            self._count_busy_cpus()
            self._update_totals(used)
        changed, self._changed = self._changed, np.zeros_like(self._changed)
        return changed

    def gains(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what *slots* counted since their ``rebase``, a column for each of ``names``."""
        gained: NDArray[np.int64] = self._totals[slots] - self._base[slots]
        return gained

    def machine(self) -> dict[str, int]:
        """Return the counters summed over all slots, from the opening of the events up to now."""
        for cpu in self._counted:
            self._count_running(cpu)
        self._update_totals(len(self._totals))
        return dict(zip(self.names, self._totals.sum(axis=0).tolist(), strict=True))

    def reset(self) -> None:
        """Let all slots count from zero, after a time in which the program read no counters."""
        self._refreshed_ns = time.monotonic_ns()
        for cpu in self._counted:
            self._count_running(cpu)
        self._base[:] = self._totals[:] = self._sum(0, len(self._totals))

    def _update_totals(self, used: int) -> None:
        totals = self._sum(0, used)
        self._changed[:used] |= (totals != self._totals[:used]).any(axis=1)
        self._totals[:used] = totals

    def _sum(self, first: int, end: int) -> NDArray[np.int64]:
        total: NDArray[np.int64] = self._sums[:, first:end].sum(axis=0, dtype=np.int64)
        return total

    def _count_busy_cpus(self) -> None:
        # On every busy CPU, because it is not known when its workload changed last.
        for cpu in np.flatnonzero(self._running != SLOT_IDLE).tolist():
            if cpu in self._counted:
                self._count_running(cpu)

    def _count_running(self, cpu: int) -> None:
        if self._run_problem:
            return
        options = _TestRunOptions(
            sz=ctypes.sizeof(_TestRunOptions), flags=_TEST_RUN_ON_CPU, cpu=cpu
        )
        error = -self._libbpf.bpf_prog_test_run_opts(self._program, ctypes.byref(options))
        # ENXIO: the CPU has just gone off line.
        if error not in (0, errno.ENXIO):
            self._run_problem = (
                "counts of a workload are added only when it leaves a CPU, because the program "
                f"cannot be run on request: {os.strerror(error)}"
            )
            _log.warning("counters: %s", self._run_problem)

    def _open_new_cpus(self) -> None:
        online = set(online_cpus())
        # Events of a CPU that was off line never count again, however short that time was.
        dead = set(np.flatnonzero(self._cpus.values["dead"]).tolist())
        self._counted &= online - dead
        self._refused &= online
        for cpu in online - self._counted:
            try:
                self._open_on(cpu)
            except OSError as error:
                # ENODEV: off line again. Other errors are logged once per CPU; each is retried
                # in a second.
                if error.errno != errno.ENODEV and cpu not in self._refused:
                    _log.error("counters: %s", error)
                    self._refused.add(cpu)
            else:
                self._counted.add(cpu)
                self._refused.discard(cpu)

    def _open_on(self, cpu: int) -> None:
        keys = range(cpu * len(self._sources), (cpu + 1) * len(self._sources))
        for key in keys:
            self._libbpf.bpf_map_delete_elem(self._events, struct.pack("=I", key))
        # Run without events, the program resets its last values, so that the values of the old and
        # the new events are not subtracted from each other.
        self._count_running(cpu)
        self._cpus.values["dead"][cpu] = 0
        for key, source in zip(keys, self._sources, strict=True):
            self._count_on(key, source, cpu)

    def _count_on(self, index: int, source: EventSource, cpu: int) -> None:
        fd = open_event(source, cpu)
        try:
            key, value = struct.pack("=I", index), struct.pack("=i", fd)
            if self._libbpf.bpf_map_update_elem(self._events, key, value, ctypes.c_uint64(0)):
                error = ctypes.get_errno()
                raise OSError(error, f"{source.text} on CPU {cpu}: {os.strerror(error)}")
        finally:
            os.close(fd)  # the map holds the event
