# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Variants of the sched probe for comparison, their attachment, and the pipe benchmark."""

from collections.abc import Iterable, Iterator, Mapping
import contextlib
import ctypes
from dataclasses import replace
from functools import partial
import os
from pathlib import Path
import re
import resource
import subprocess
import time
from typing import NamedTuple

import numpy as np

from controller.core.model import CgroupId
from controller.host.facts import possible_cpus
from controller.host.package_data import bpf_dir
from controller.probes.bpf.btf import Btf
from controller.probes.bpf.libbpf import HashMap
from controller.probes.bpf.loader import Loaded, ProgramSpec, load
from controller.probes.counters import Counters, choose_sources
from controller.probes.perf import EventSource
from controller.probes.sched_program import sched_spec

__all__ = (
    "CPU",
    "RunTime",
    "arms",
    "attached",
    "pipe_us",
    "process_run_time",
    "program_run_time",
    "run_time",
)

OPERATIONS = 200_000
CPU = max(os.sched_getaffinity(0))
CPUS = max(possible_cpus()) + 1
MAX_SLOTS, MAX_LATENCY = 1024, 256
sized_spec = partial(sched_spec, cpus=CPUS, max_slots=MAX_SLOTS, max_latency=MAX_LATENCY)
EMPTY = Path(__file__).with_name("empty.bpf.c")
WAKEUP_HASH = Path(__file__).with_name("wakeup_hash.bpf.c")
# Three counters, as on a machine with a PMU; these exist on every x86. The event context-switches
# is not used: it would make switches more expensive outside the program.
COUNTED = {"cycles": "msr/tsc/", "instructions": "cpu-clock", "llc_misses": "msr/tsc/"}


class Arm(NamedTuple):
    """A variant: the program to attach (``None``: none), and its counters."""

    spec: ProgramSpec | None
    counters: Mapping[str, EventSource]


class RunTime(NamedTuple):
    """BPF statistics: ns in all programs of a variant, and the runs of the sched_switch program."""

    ns: int
    switches: int


def arms(folder: Path, btf_without_sched_info: Path) -> dict[str, Arm]:
    """Return all variants by name; *folder* is for modified sources."""
    btf = Btf()
    counters, reasons = choose_sources(COUNTED)
    assert reasons == {}
    blame = sized_spec(btf, blame=True)
    counting = sized_spec(btf, blame=True, counters=counters)
    stamps = sized_spec(Btf(btf_without_sched_info), blame=True)
    return {
        "nothing": Arm(None, {}),
        "empty program": Arm(ProgramSpec(source=str(EMPTY), defines={}, maps=()), {}),
        "sched": Arm(sized_spec(btf, blame=False), {}),
        "sched with blame": Arm(blame, {}),
        "with blame and counters": Arm(counting, counters),
        "counters at every switch": Arm(_reading_always(counting, folder), counters),
        "sched untyped": Arm(replace(blame, typed=False), {}),
        "sched by wakeup stamps": Arm(stamps, {}),
        "wakeup hash": Arm(_wakeup_hash(btf), {}),
    }


def _reading_always(spec: ProgramSpec, folder: Path) -> ProgramSpec:
    condition = re.compile(r"\tif \(slot != cpu->slot[^\n]*\n\t(\tcount_for)")
    text, replaced = condition.subn(r"\1", (bpf_dir() / spec.source).read_text())
    assert replaced == 1
    path = folder / "always.bpf.c"
    path.write_text(text)
    return replace(spec, source=str(path))


def _wakeup_hash(btf: Btf) -> ProgramSpec:
    """Return the conventional design: time stamps in a hash map."""
    defines = {
        "OFF_TASK_PID": btf.offset("task_struct", "pid"),
        "OFF_TASK_STATE": btf.first_offset("task_struct", "__state", "state"),
        "OFF_TASK_GROUP": btf.offset("task_struct", "sched_task_group"),
        "OFF_CSS_CGROUP": btf.offset("cgroup_subsys_state", "cgroup"),
        "OFF_CGROUP_KN": btf.offset("cgroup", "kn"),
        "OFF_KERNFS_ID": btf.offset("kernfs_node", "id"),
    }
    return ProgramSpec(source=str(WAKEUP_HASH), defines=defines, maps=("queued_at", "latencies"))


@contextlib.contextmanager
def attached(arm: Arm, members: Mapping[CgroupId, bool]) -> Iterator[Loaded | None]:
    """Attach *arm*; each of *members* gets a slot, and a latency record if its value is True."""
    if arm.spec is None:
        yield None
        return
    with load(arm.spec) as loaded:
        slots = loaded.map_fds.get("slot_of_cgroup")
        if slots is not None:
            for number, (cgroup, latency) in enumerate(members.items()):
                HashMap(slots).set(cgroup.id, 3 + number, number + 1 if latency else 0)
        if arm.counters:
            running = np.zeros(CPUS, np.uint64)
            Counters(arm.counters, loaded, slots=MAX_SLOTS, running=running)
        yield loaded


def pipe_us(one: Path, other: Path) -> float:
    """Return microseconds of CPU time per operation of the pipe benchmark on one CPU.

    Its two processes are in the cgroups *one* and *other*; an operation is two switches. The CPU
    time includes the switches and the programs attached to them, not other work on that CPU.
    """
    before_s = _children_s()
    done = subprocess.Popen(
        ["perf", "bench", "sched", "pipe", "-l", str(OPERATIONS)],
        preexec_fn=lambda: _enter(one),
        stdout=subprocess.DEVNULL,
    )
    if other != one:
        children = Path(f"/proc/{done.pid}/task/{done.pid}/children")
        while not (pids := children.read_text().split()):
            time.sleep(0.001)
        (other / "cgroup.procs").write_text(pids[0])
    assert done.wait(timeout=60) == 0
    return (_children_s() - before_s) / OPERATIONS * 1e6


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _enter(cgroup: Path) -> None:
    os.sched_setaffinity(0, {CPU})
    (cgroup / "cgroup.procs").write_text(str(os.getpid()))


def run_time(loaded: Loaded) -> RunTime:
    """Return the present BPF statistics; kernel.bpf_stats_enabled must be 1."""
    return _run_time(Path(f"/proc/self/fdinfo/{link}").read_text() for link in loaded.link_fds)


def process_run_time(pid: int) -> RunTime:
    """Return the same for the tracepoints whose links the process *pid* holds."""
    infos = []
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the process has closed it
            infos.append(info.read_text())
    return _run_time(infos)


def _run_time(infos: Iterable[str]) -> RunTime:
    ns = switches = 0
    for info in infos:
        name = re.search(r"tp_name:\s*(\S+)", info)
        program = re.search(r"prog_id:\s*(\d+)", info)
        if name is None or program is None:
            continue
        taken = program_run_time(int(program[1]))
        ns += taken.ns
        if name[1] == "sched_switch":
            switches += taken.switches
    return RunTime(ns, switches)


def program_run_time(number: int) -> RunTime:
    """Return run time and runs of the BPF program with this id."""
    fd = ctypes.CDLL("libbpf.so.1").bpf_prog_get_fd_by_id(number)
    text = Path(f"/proc/self/fdinfo/{fd}").read_text()
    os.close(fd)
    fields = dict(re.findall(r"(run_time_ns|run_cnt):\s*(\d+)", text))
    return RunTime(int(fields["run_time_ns"]), int(fields["run_cnt"]))
