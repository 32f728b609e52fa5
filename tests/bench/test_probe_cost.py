# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the sched probe costs per context switch, beside nothing and other programs.

Two measures, because neither is enough alone: the wall clock of ``perf bench sched pipe`` (two
switches per operation) is the honest total but scatters by tens of ns; the kernel's BPF
statistics repeat to a few ns but do not see the cost of entering the program.
"""

from collections.abc import Iterator
import contextlib
import ctypes
from dataclasses import replace
import os
from pathlib import Path
import re
import statistics
import subprocess

import pytest

from controller.host import CgroupLayout, possible_cpus
from controller.model import CgroupId
from controller.probes.btf import Btf
from controller.probes.loader import Loaded, ProgramSpec, load
from controller.probes.maps import HashMap
from controller.probes.sched_program import sched_spec
from tests.kernel.loads import Load, loads

pytestmark = [pytest.mark.bench, pytest.mark.kernel]

ROUNDS = 7
OPERATIONS = 200_000
SWITCHES_PER_OPERATION = 2
CPU = max(os.sched_getaffinity(0))
CPUS = max(possible_cpus()) + 1
STATS = Path("/proc/sys/kernel/bpf_stats_enabled")
EMPTY = Path(__file__).with_name("empty.bpf.c")
WAKEUP_HASH = Path(__file__).with_name("wakeup_hash.bpf.c")


def programs() -> dict[str, ProgramSpec | None]:
    """Return what is attached in each arm."""
    btf = Btf()
    sizes = {"cpus": CPUS, "max_slots": 1024, "max_latency": 256}
    return {
        "nothing": None,
        "empty program": ProgramSpec(source=str(EMPTY), defines={}, maps=()),
        "sched": sched_spec(btf, **sizes, blame=False),
        "sched with blame": sched_spec(btf, **sizes, blame=True),
        "sched untyped": replace(sched_spec(btf, **sizes, blame=True), typed=False),
        "wakeup hash": wakeup_hash(btf),
    }


def wakeup_hash(btf: Btf) -> ProgramSpec:
    """Return the usual design, to compare with."""
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
def attached(spec: ProgramSpec | None, members: dict[CgroupId, bool]) -> Iterator[Loaded | None]:
    """Attach *spec*; *members* are assigned slots, with a latency record where True."""
    if spec is None:
        yield None
        return
    with load(spec) as loaded:
        slots = loaded.map_fds.get("slot_of_cgroup")
        if slots is not None:
            for number, (cgroup, latency) in enumerate(members.items()):
                HashMap(slots).set(cgroup.id, 3 + number, number + 1 if latency else 0)
        yield loaded


def pipe_us(cgroup: Path) -> float:
    """Return microseconds per operation of the pipe benchmark, pinned, inside *cgroup*."""
    done = subprocess.run(
        ["perf", "bench", "sched", "pipe", "-l", str(OPERATIONS)],
        preexec_fn=lambda: _enter(cgroup),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    match = re.search(r"([\d.]+) usecs/op", done.stdout)
    assert match is not None, done.stdout
    return float(match[1])


def _enter(cgroup: Path) -> None:
    os.sched_setaffinity(0, {CPU})
    (cgroup / "cgroup.procs").write_text(str(os.getpid()))


def test_cost_on_the_pipe_benchmark(cgroup_root: Path, cgroup_layout: CgroupLayout) -> None:
    cgroup = cgroup_root / "pipe"
    cgroup.mkdir()
    members = {CgroupId(cgroup_layout.hierarchy, cgroup.stat().st_ino): True}
    times: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for name, spec in programs().items():
            with attached(spec, members):
                times.setdefault(name, []).append(pipe_us(cgroup))
    print(f"\nperf bench sched pipe, {ROUNDS} interleaved rounds, ns per switch over nothing:")
    # Of each round: its neighbours had the same machine.
    extra = {
        name: [
            (with_ - without) * 1000 / SWITCHES_PER_OPERATION
            for with_, without in zip(values, times["nothing"], strict=True)
        ]
        for name, values in times.items()
    }
    for name, values in extra.items():
        middle = statistics.median(values)
        base = statistics.median(times[name])
        print(
            f"  {name:18} {middle:6.0f} ns  (rounds {min(values):.0f} to {max(values):.0f}; "
            f"{base:.3f} us/op)"
        )
    ratio = statistics.median(extra["sched with blame"]) / statistics.median(extra["wakeup hash"])
    print(f"  with blame, {ratio:.2f} times the cost of the wakeup hash")
    assert ratio < 1
    assert statistics.median(extra["sched"]) <= 120
    assert statistics.median(extra["sched with blame"]) <= 150


@pytest.fixture
def bpf_statistics() -> Iterator[None]:
    before = STATS.read_text()
    STATS.write_text("1")
    yield
    STATS.write_text(before)


MIXES = {
    "eight hogs, two cgroups": [("service", "hog")] * 4 + [("batch", "hog")] * 4,
    "service beside four hogs": [("service", "bursts")] * 4 + [("batch", "hog")] * 4,
}


@pytest.mark.usefixtures("bpf_statistics")
@pytest.mark.parametrize("mix", MIXES)
def test_cost_where_blame_runs(mix: str, cgroup_root: Path, cgroup_layout: CgroupLayout) -> None:
    paths = {name: cgroup_root / name for name in ("service", "batch")}
    for path in paths.values():
        path.mkdir()
    members = {
        CgroupId(cgroup_layout.hierarchy, path.stat().st_ino): name == "service"
        for name, path in paths.items()
    }
    costs_ns: dict[str, float] = {}
    print(f"\n{mix} on one CPU, ns inside the program per switch (BPF statistics):")
    for name, spec in programs().items():
        if spec is None:
            continue
        with attached(spec, members) as loaded:
            assert loaded is not None
            wanted = [Load(paths[cgroup], kind, CPU) for cgroup, kind in MIXES[mix]]
            with loads(wanted, seconds=3) as running:
                before = _run_time(loaded)
                running.work()
                after = _run_time(loaded)
        runs = after[1] - before[1]
        costs_ns[name] = (after[0] - before[0]) / runs
        print(f"  {name:18} {costs_ns[name]:6.0f} ns  ({runs} switches)")
        assert runs > 500
    # These switches are rare, so they find cold caches: only a ratio means something here.
    assert costs_ns["sched with blame"] <= 0.6 * costs_ns["wakeup hash"]


def _run_time(loaded: Loaded) -> tuple[int, int]:
    """Return (ns, runs) of the sched_switch program from its link's program."""
    totals = [(0, 0)]
    for link in loaded.link_fds:
        info = Path(f"/proc/self/fdinfo/{link}").read_text()
        name = re.search(r"tp_name:\s*(\S+)", info)
        program = re.search(r"prog_id:\s*(\d+)", info)
        if name is None or program is None or name[1] != "sched_switch":
            continue
        fd = ctypes.CDLL("libbpf.so.1").bpf_prog_get_fd_by_id(int(program[1]))
        text = Path(f"/proc/self/fdinfo/{fd}").read_text()
        os.close(fd)
        fields = dict(re.findall(r"(run_time_ns|run_cnt):\s*(\d+)", text))
        totals.append((int(fields["run_time_ns"]), int(fields["run_cnt"])))
    return max(totals)
