# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A node whose pods need more memory than it has: what a service suffers, and what jobs do.

The pods of the node share ``NODE_MIB``: their cgroup's parent has that limit, above what the node's
programs use. A service requests less than it uses, and uses more from time to time. Best-effort
pods of a Deployment do units of work, each of which takes memory. Together they want 1.5 times what
there is. The work is the MiB of the units that were done.

The arms come one after the other: kubelet alone, static limits of all best-effort pods by hand, the
agent of the chart. ``SWEETPOINT_NODE_MEMORY_S`` is the time of the agent's arm, 600 by default. A
static limit has a quarter of it.
"""

from collections.abc import Iterator
import contextlib
from dataclasses import dataclass
import os
from pathlib import Path
import subprocess
import time

import pytest

from tests.kube.images import save_files
from tests.kube.node_programs import NODE, container
from tests.kube.real_node import RealNode
from tests.kube.release import Release

pytestmark = [pytest.mark.kernel, pytest.mark.kube, pytest.mark.bench]

SECONDS = float(os.environ.get("SWEETPOINT_NODE_MEMORY_S", "600"))
MIB = 1 << 20
NODE_MIB = 2048
# What the programs of the node may use more than at the start of an arm.
_GROWTH_MIB = 160
# The service has the larger amount for a fifth of the time.
LOW_MIB, HIGH_MIB, LOW_S, HIGH_S = 500, 1100, 110.0, 30.0
REQUEST = {"requests": {"cpu": "100m", "memory": "256Mi"}}
# Each takes so much on average, and 7 s for a unit that is not killed.
JOBS, UNIT_MIB, RATE_MIB, HOLD_S = 10, 200, 50, 3.0
STATIC_MIB = (400, 700, 850, 1000, 1300)
IMAGE = "example.org/memory-work:local"
# What kubelet says when it evicts (pkg/kubelet/eviction/eviction_manager.go).
_EVICTS = "must evict pod(s)"
# The least work, relative to the best static limit under which the service lives.
LEAST_WORK = 0.8


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened in one arm: restarts of the service, GiB of work per minute, units killed."""

    restarts: int
    gib_per_min: float
    killed: int
    was_ready: bool
    evictions: int

    def __str__(self) -> str:
        ready = "ready" if self.was_ready else "not always ready"
        return (
            f"{self.restarts} restarts of the service, {self.gib_per_min:.2f} GiB/min done, "
            f"{self.killed} units killed, node {ready}, {self.evictions} evictions by kubelet"
        )


class Bench:
    """The pods on *node*; one after the other, arms of some seconds."""

    def __init__(self, node: RealNode, home: Path) -> None:
        self._node = node
        self._counts = home / "counts"
        self._root = node.host.cgroup("memory")
        self._namespace = node.make_namespace(node.cluster.new_name("memory"))
        self._path = f"/apis/apps/v1/namespaces/{self._namespace}/deployments"

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        """Give the pods of the node ``NODE_MIB`` together, beside its programs of now."""
        rows = dict(line.split() for line in (self._root / "memory.stat").read_text().splitlines())
        kernel = int((self._root / "memory.kmem.usage_in_bytes").read_text())
        used = int(rows["total_rss"]) + int(rows["total_shmem"]) + kernel
        file = self._root / "memory.limit_in_bytes"
        file.write_text(str(used + (NODE_MIB + _GROWTH_MIB) * MIB))
        try:
            yield
        finally:
            file.write_text("-1")

    def run(self, seconds: float) -> Outcome:
        """Run service and jobs for so long."""
        self._counts.mkdir(exist_ok=True)
        for file in self._counts.iterdir():
            file.unlink()
        before = self._node.log("kubelet").count(_EVICTS)
        work = {
            **container("main", REQUEST, ""),
            "image": IMAGE,
            "command": ["/bin/work", "hold", *map(str, (LOW_MIB, HIGH_MIB, LOW_S, HIGH_S))],
        }
        self._node.run_pod(self._namespace, "web", {}, spec={"containers": [work]})
        try:
            with self.limited():
                self._start_jobs()
                try:
                    was_ready, spent_s = self._watch(seconds)
                    texts = [each.read_text().split() for each in self._counts.glob("jobs*[0-9]")]
                    counts = [(int(done), int(killed)) for done, killed in texts]
                    pod = self._node.pod(self._namespace, "web")
                finally:
                    self._stop_jobs()
        finally:
            self._node.delete_pod(self._namespace, "web")
        (status,) = pod["status"]["containerStatuses"]
        return Outcome(
            restarts=int(status["restartCount"]),
            gib_per_min=60.0 * sum(done for done, _ in counts) / 1024 / spent_s,
            killed=sum(killed for _, killed in counts),
            was_ready=was_ready,
            evictions=self._node.log("kubelet").count(_EVICTS) - before,
        )

    def _watch(self, seconds: float) -> tuple[bool, float]:
        """Wait; return whether the node was ready all the time, and how long it took."""
        began, was_ready = time.monotonic(), True
        while time.monotonic() < began + seconds:
            time.sleep(1.0)
            was_ready = was_ready and self._node.is_ready()
        return was_ready, time.monotonic() - began

    def limit_level(self, mib: int | None) -> None:
        """Limit all BestEffort pods together by hand; ``None``: not at all."""
        level = self._root / "kubepods/besteffort"
        (level / "memory.limit_in_bytes").write_text("-1" if mib is None else str(mib * MIB))

    def _start_jobs(self) -> None:
        folder = "/work"
        words = map(str, (UNIT_MIB, RATE_MIB, HOLD_S, folder))
        job = {
            **container("main", {}, ""),
            "image": IMAGE,
            "command": ["/bin/work", "units", *words],
            "volumeMounts": [{"name": "counts", "mountPath": folder}],
        }
        labels = {"app": "jobs"}
        spec = {
            "nodeName": NODE,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "containers": [job],
            "volumes": [{"name": "counts", "hostPath": {"path": str(self._counts)}}],
        }
        body = {
            "metadata": {"name": "jobs"},
            "spec": {
                "replicas": JOBS,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        }
        self._node.cluster.admin.create(self._path, body)

    def _stop_jobs(self) -> None:
        self._node.cluster.admin.delete(f"{self._path}/jobs?propagationPolicy=Foreground")
        pods = f"/api/v1/namespaces/{self._namespace}/pods?labelSelector=app%3Djobs"
        self._node.wait(
            "the end of the jobs", lambda: not self._node.cluster.admin.get(pods)["items"]
        )


def test_a_service_lives_beside_more_work_than_memory(
    node: RealNode, agent_image: None, tmp_path: Path
) -> None:
    program = tmp_path / "work"
    source = Path(__file__).with_name("memory_work.c")
    subprocess.run(["gcc", "-O2", "-static", "-o", program, source], check=True)
    node.add_image(save_files(tmp_path / "work.tar", IMAGE, [], {"bin/work": program}))
    bench = Bench(node, tmp_path)
    found: dict[str, Outcome] = {}

    def run(arm: str, seconds: float) -> Outcome:
        found[arm] = bench.run(seconds)
        print(f"\n{arm}: {found[arm]}", end="", flush=True)
        return found[arm]

    alone = run("kubelet alone", SECONDS / 4)
    try:
        for mib in STATIC_MIB:
            bench.limit_level(mib)
            run(f"static limit of {mib} MiB", SECONDS / 4)
    finally:
        bench.limit_level(None)
    release = Release(node, {"config": {"memory": {"capacity": f"{NODE_MIB}MiB"}}})
    release.install()
    try:
        agent = run("agent", SECONDS)
        if os.environ.get("SWEETPOINT_NODE_MEMORY_LOG"):
            print(release.log())
    finally:
        release.uninstall()
    static = [each for arm, each in found.items() if arm.startswith("static") and not each.restarts]
    best = max((each.gib_per_min for each in static), default=0.0)
    print(f"\nbest static limit: {best:.2f} GiB/min; agent {agent.gib_per_min:.2f}")
    assert alone.restarts > 0, "the service suffers from nothing"
    assert best > 0, "no static limit lets the service live and jobs work"
    assert (agent.restarts, agent.evictions, agent.was_ready) == (0, 0, True)
    assert agent.gib_per_min >= LEAST_WORK * best
