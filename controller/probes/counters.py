# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Perf counters per slot: opens the events for ``bpf/include/counters.h`` and reads the sums.

The kernel adds to the sums whenever a CPU changes the workload. Once a second the CPUs that did
not are asked to (BPF_PROG_TEST_RUN on that CPU, Linux kernel commit 1b4d60ec162f (in v5.10): 4 us
on the own CPU, 39 us on another one that is busy), and CPUs that came on line get their events.
"""

from collections.abc import Mapping
import ctypes
import logging
import os
import struct

import numpy as np
from numpy.typing import NDArray

from controller.host import online_cpus
from controller.probes.loader import Loaded
from controller.probes.maps import MappedArray
from controller.probes.perf import EventSource, SourceError, find_source, open_event

__all__ = ("AUTO", "COUNTERS", "Counters", "choose_sources", "counter_maps")

_log = logging.getLogger(__name__)

# Fields of WorkloadSample, and what ``auto`` stands for.
AUTO: Mapping[str, str] = {
    "cycles": "cycles",
    "instructions": "instructions",
    "llc_misses": "cache-misses",
    "llc_references": "cache-references",
    "stalled_cycles": "stalled-cycles-backend",
}
COUNTERS = tuple(AUTO)
_REFRESH_NS = 1_000_000_000
_SUMS = np.dtype([("word", "u8", 8)])
_CPU = np.dtype([("reads", "u8"), ("last", "u8", 15)])
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
    """Return (sources that this host can count, reasons for those that it cannot), by counter.

    *wanted* holds a source, ``auto`` or ``off`` for each of ``COUNTERS``; what is off is in
    neither. A counter is tried on one CPU.
    """
    found: dict[str, EventSource] = {}
    reasons: dict[str, str] = {}
    for name in COUNTERS:
        text = wanted.get(name, "off")
        if text == "off":
            continue
        try:
            source = find_source(AUTO[name] if text == "auto" else text)
            os.close(open_event(source, online_cpus()[0]))
        except (SourceError, OSError) as error:
            reasons[name] = str(error) if text != "auto" else f"no hardware counter here ({error})"
        else:
            found[name] = source
    return found, reasons


def counter_maps(sources: Mapping[str, EventSource]) -> tuple[str, ...]:
    """Return the names of the maps that *sources* need."""
    if not sources:
        return ()
    return ("counters", "counted_cpus", *(f"perf_{index}" for index in range(len(sources))))


class Counters:
    """The sums per slot, as of the last second.

    :param loaded: the program, with the maps of ``counter_maps`` and ``count_running``.
    :raises OSError: an event that could be opened on one CPU cannot be on another, or the map
        refuses it.
    """

    def __init__(
        self, sources: Mapping[str, EventSource], loaded: Loaded, *, slots: int, cpus: int
    ) -> None:
        self.names = tuple(sources)
        self._sources = tuple(sources.values())
        fds = loaded.map_fds
        self._arrays = [fds[f"perf_{index}"] for index in range(len(sources))]
        self._program = loaded.program_fds["count_running"]
        self._libbpf = ctypes.CDLL("libbpf.so.1", use_errno=True)
        self._raw = MappedArray(fds["counters"], _SUMS, slots * cpus)
        sums = self._raw.values["word"].reshape(slots, cpus, 8)
        self._sums = sums[:, :, : len(sources)]
        self._cpus = MappedArray(fds["counted_cpus"], _CPU, cpus)
        self._reads = np.zeros(cpus, np.uint64)
        self._online: frozenset[int] = frozenset()
        self._refreshed_ns = 0
        self._base = np.zeros((slots, len(sources)), np.int64)
        self._totals = np.zeros((slots, len(sources)), np.int64)
        self.late = ""
        self._follow_cpus()

    def rebase(self, slot: int) -> None:
        """Count for *slot* from zero: it has another owner now."""
        self._base[slot] = self._totals[slot] = self._sum(slot, slot + 1)[0]

    def refresh(self, used: int, now_ns: int) -> None:
        """Bring the totals of the first *used* slots up to date, once a second."""
        if now_ns - self._refreshed_ns < _REFRESH_NS:
            return
        self._refreshed_ns = now_ns
        self._follow_cpus()
        self._count_the_staying()
        self._totals[:used] = self._sum(0, used)

    def columns(self, slots: NDArray[np.int64]) -> dict[str, list[int]]:
        """Return the counters of *slots* since their ``rebase``, one list per counter."""
        gains = (self._totals[slots] - self._base[slots]).T.tolist()
        return dict(zip(self.names, gains, strict=True))

    def machine(self) -> dict[str, int]:
        """Return the counters of all slots together since they were opened."""
        return dict(zip(self.names, self._totals.sum(axis=0).tolist(), strict=True))

    def _sum(self, first: int, end: int) -> NDArray[np.int64]:
        total: NDArray[np.int64] = self._sums[first:end].sum(axis=1, dtype=np.int64)
        return total

    def _count_the_staying(self) -> None:
        reads = self._cpus.values["reads"].copy()
        for cpu in self._online:
            if reads[cpu] == self._reads[cpu] and not self.late:
                self._count_running(cpu)
        self._reads = self._cpus.values["reads"].copy()

    def _count_running(self, cpu: int) -> None:
        options = _TestRunOptions(
            sz=ctypes.sizeof(_TestRunOptions), flags=_TEST_RUN_ON_CPU, cpu=cpu
        )
        error = -self._libbpf.bpf_prog_test_run_opts(self._program, ctypes.byref(options))
        # ENXIO: the CPU went off line a moment ago.
        if error not in (0, 6):
            self.late = f"who stays on a CPU is counted when it leaves: {os.strerror(error)}"
            _log.warning("counters: %s", self.late)

    def _follow_cpus(self) -> None:
        online = frozenset(online_cpus())
        for cpu in online - self._online:
            for array, source in zip(self._arrays, self._sources, strict=True):
                self._count_on(array, source, cpu)
        self._online = online

    def _count_on(self, array: int, source: EventSource, cpu: int) -> None:
        fd = open_event(source, cpu)
        try:
            key, value = struct.pack("=I", cpu), struct.pack("=i", fd)
            if self._libbpf.bpf_map_update_elem(array, key, value, ctypes.c_uint64(0)):
                error = ctypes.get_errno()
                raise OSError(error, f"{source.text} on CPU {cpu}: {os.strerror(error)}")
        finally:
            os.close(fd)  # the map holds the event
