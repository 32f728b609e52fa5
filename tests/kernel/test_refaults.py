# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Refaults of a service beside a best-effort reader, below one limit of both or one of its own."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
import os
from pathlib import Path
import subprocess
import sys

import pytest

from controller.core.decision import SlowBecause
from controller.core.model import CgroupId, IndicatorName, QosClass, Workload
from controller.demo.programs import free_port
from controller.host.facts import CgroupLayout
from controller.host.memory import MemoryHierarchy, find_memory
from controller.probes.cgroup_usage import UsageMeter
from controller.probes.memory_strain import StrainMeter
from tests.kernel.agent import AgentRun
from tests.support.cgroups import remove_cgroup
from tests.support.loops.closed_loop import make_settings, make_spec
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel

MIB = 1 << 20
LIMIT_MIB, SERVICE_MIB, STREAM_MIB = 48, 24, 64

# Reads a file for each line of its input, and answers with a line.
_READER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: none outlives the test
path, *cgroups = sys.argv[1:]
for cgroup in cgroups:
    open(cgroup + "/cgroup.procs", "w").write("0")
for line in sys.stdin:
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 20):
            pass
    print(flush=True)
"""


class Reader:
    """A process in *cgroups* that reads the file *path* of *mib* MiB, made here."""

    def __init__(self, path: Path, mib: int, cgroups: list[Path]) -> None:
        with path.open("wb") as file:
            file.write(bytes(mib * MIB))
            file.flush()
            os.fsync(file.fileno())
            # The cache belongs to who read the pages first, which must not be this process.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", _READER, str(path), *dict.fromkeys(map(str, cgroups))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> None:
        """Read the file once, from the first to the last byte."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "\n"

    def close(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class ReadersNode:
    """A service that reads its file again and again, and a job with a long file, below a limit."""

    def __init__(self, layout: CgroupLayout, root: Path, home: Path) -> None:
        self.memory: MemoryHierarchy = find_memory(layout.unified)
        assert self.memory.mount is not None
        self.root, self.home, self._layout = root, home, layout
        self.below = self.memory.mount / root.relative_to(layout.mount)
        for tree in dict.fromkeys((root, self.below)):
            for name in ("", "batch"):
                (tree / name).mkdir(exist_ok=True)
                control = tree / name / "cgroup.subtree_control"
                if control.exists():
                    control.write_text("+cpu +memory")
            for name in ("web", "batch/job"):
                (tree / name).mkdir()
        self.limit(self.below, LIMIT_MIB)
        self.config, self.port = home / "config.yaml", free_port()
        self.workloads = (self._workload("web", QosClass.LS), self._workload("batch/job"))

    def limit(self, folder: Path, mib: int) -> None:
        """Set the limit of a cgroup."""
        name = "memory.max" if self.memory.version == "v2" else "memory.limit_in_bytes"
        (folder / name).write_text(str(mib * MIB))

    def start(self, name: str, mib: int) -> Reader:
        """Start the reader of the cgroup *name*."""
        folders = [self.root / name, self.below / name]
        return Reader(self.home / Path(name).name, mib, folders)

    def _workload(self, name: str, qos: QosClass = QosClass.BE) -> Workload:
        folder = self.root / name
        cgroup = CgroupId(self._layout.hierarchy, folder.stat().st_ino)
        path = "/" + str(folder.relative_to(self._layout.mount))
        return Workload(name, cgroup, path, qos, name, "default")

    def kernel_refaults(self) -> int:
        """Return the refaults of the service as its file shows them."""
        rows = (self.below / "web/memory.stat").read_text().split("\n")
        prefix = "total_" if self.memory.version == "v1" else ""
        return sum(int(r.split()[1]) for r in rows if r.startswith(f"{prefix}workingset_refault"))

    def protected(self) -> bool:
        """Not asked for."""
        return True

    def write(self, memory: str = "guard: false", profile: str = "reader") -> None:
        """Write the configuration of an agent; *memory* is that section."""
        (self.home / "reader.yaml").write_text(
            "name: reader\nchannels: [memory]\nsched_idle: false\nindicators:\n"
            "  refaults: {sweet_point: 20/s, resolution: 1/s, filter: 0s}\n"
        )
        path = "/" + str(self.root.relative_to(self._layout.mount))
        self.config.write_text(
            f"mode: enforce\nhttp: 127.0.0.1:{self.port}\nmemory: {{{memory}}}\n"
            f"state_dir: {self.home}/state\ndata_dir: {self.home}/data\n"
            "profiles: [reader.yaml]\nworkloads:\n"
            f"  - {{name: web, cgroup: {path}/web, class: latency-sensitive, profile: {profile}}}\n"
            f'  - {{name: batch, cgroup: "{path}/batch/*", class: best-effort}}\n'
        )


@pytest.fixture
def node(cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path) -> Iterator[ReadersNode]:
    made = ReadersNode(cgroup_layout, cgroup_root, tmp_path)
    yield made
    remove_cgroup(made.below)


@pytest.fixture
def readers(node: ReadersNode) -> Iterator[tuple[Reader, Reader]]:
    with ExitStack() as stack:
        web, job = node.start("web", SERVICE_MIB), node.start("batch/job", STREAM_MIB)
        stack.callback(web.close)
        stack.callback(job.close)
        yield web, job


def test_refaults_are_those_of_the_kernel_and_limits_of_the_service_are_told_apart(
    node: ReadersNode, readers: tuple[Reader, Reader]
) -> None:
    web, job = readers
    settings = make_settings()
    spec = replace(make_spec(), name=IndicatorName.REFAULTS, sweet_point=1.0)
    profile = replace(settings.profiles["default"], indicators=(spec,))
    strain = StrainMeter(node.memory)
    strain.reconfigure(replace(settings, profiles={"default": profile}))
    strain.set_workloads(node.workloads)
    usage = UsageMeter(node.memory.mount if node.memory.version == "v2" else None, node.memory)
    usage.set_workloads(node.workloads)
    service, batch = (each.cgroup for each in node.workloads)
    polls = iter(range(10**6))

    def read() -> tuple[int, int]:
        least = node.kernel_refaults()
        strain.poll(next(polls), None)
        found = strain.workloads[service]
        assert strain.workloads.keys() == {service}
        assert found.refaults is not None and found.memory_limit_hits is not None
        # The kernel adds the last ones of each CPU to the sum every two seconds.
        assert least <= found.refaults <= node.kernel_refaults()
        return found.refaults, found.memory_limit_hits

    for _ in range(3):
        web.read()
    assert read() == (0, 0), "both files fit in the limit, and one of them is not read"

    def has_refaults() -> bool:
        job.read()
        web.read()
        return read()[0] > 1000

    eventually("refaults", has_refaults)
    assert read()[1] == 0, "the limit that was reached is not that of the service"
    usage.poll(0, None)
    used = usage.workloads[batch].memory_bytes
    assert used is not None and used > 4 * MIB, "what the evidence rests on"

    node.limit(node.below / "web", SERVICE_MIB // 2)
    before = read()[0]

    def is_at_its_limit() -> bool:
        web.read()
        refaults, hits = read()
        return refaults > before + 1000 and hits > 10

    eventually("hits of its own limit", is_at_its_limit)


@pytest.mark.thorough
def test_the_state_names_the_cause_and_a_service_at_its_own_limit_gets_no_squeeze(
    node: ReadersNode, readers: tuple[Reader, Reader]
) -> None:
    web, job = readers
    node.write()

    def state(wanted: str, *working: Reader) -> bool:
        for each in working:
            each.read()
        return agent.series("sweetpoint_channel_state").get(("memory", wanted)) == 1

    with AgentRun(node).ready() as agent:
        eventually("a squeeze that is asked for", lambda: state("squeeze", web, job))
        assert node.kernel_refaults() > 0

        def is_blamed() -> bool:
            return state("squeeze", web, job) and agent.because("web") == SlowBecause.BEST_EFFORT

        eventually("its verdict", is_blamed)
        eventually("calm", lambda: state("free"))
        node.limit(node.below / "web", SERVICE_MIB // 2)
        # The job holds its memory still, and does nothing any more.
        eventually("its own limit", lambda: state("self", web))

        def is_told() -> bool:
            web.read()
            return agent.because("web") == SlowBecause.OWN_MEMORY

        eventually("a verdict", is_told)

        def is_not_squeezed() -> None:
            assert not state("squeeze", web)
            assert agent.because("web") in (SlowBecause.OWN_MEMORY, None)

        agent.watch(10, is_not_squeezed)
        demand = agent.series("sweetpoint_channel_demand_ratio")["memory",]
        assert demand == 0


@pytest.mark.thorough
def test_on_v1_best_effort_keeps_less_page_cache_until_the_service_keeps_its_own(
    node: ReadersNode,
) -> None:
    if node.memory.version == "v2":
        pytest.skip("v2 has memory.high")
    # What best-effort work keeps at least, 64 MiB above its need, has to fit.
    node.limit(node.below, 220)
    node.write("capacity: 220MiB, margin: 8MiB")
    limit = node.below / "batch/memory.limit_in_bytes"
    before = limit.read_text()
    with ExitStack() as stack:
        web, job = node.start("web", 100), node.start("batch/job", 400)
        stack.callback(web.close)
        stack.callback(job.close)

        def refaults_of_a_pass() -> int:
            count = node.kernel_refaults()
            job.read()
            web.read()
            return node.kernel_refaults() - count

        eventually("refaults", lambda: refaults_of_a_pass() > 1000)
        with AgentRun(node).ready() as agent:
            eventually(
                "no refaults below a limit",
                lambda: refaults_of_a_pass() == 0 and int(limit.read_text()) < 140 * MIB,
            )
            assert agent.series("sweetpoint_channel_demand_ratio")["memory",] > 0
            knobs = agent.status()["in_force"]["knobs"]
            (held,) = (each for each in knobs if each["knob"] == "memory.max")
            assert (held["service"], held["indicator"]) == ("web", "refaults")
            decisions = [each["text"] for each in agent.status()["decisions"]]
            assert any("page cache limited" in each for each in decisions), decisions
            assert job.process.poll() is None
        assert limit.read_text() == before
