# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Evictions, the node's mark and Events at a real API server, with the rights that they need."""

from collections.abc import Callable, Iterator
from pathlib import Path
import threading
from typing import Any

import pytest

from controller.config.sections.eviction import KubeEvictionConfig, MarkEffect
from controller.core.decision import Eviction, Plan
from controller.core.model import CgroupId, Channel, EvictionAnswer, EvictionResult
from controller.kube.client.api import Api
from controller.kube.client.worker import Worker
from controller.kube.events import Events, Regarding
from controller.kube.overload_taint import TAINT_KEY, OverloadTaint, remove_taint
from controller.kube.pod_eviction import PodEvictions
from controller.workloads.pods.pod import Pod, parse_pod
from tests.kernel.agent import eventually
from tests.kube.client import Client, Json, Refused
from tests.kube.cluster import Cluster

pytestmark = pytest.mark.kube

SECOND_NS = 1_000_000_000
HOG = CgroupId("cpu", 7)
RULES: list[Json] = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]},
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
]
EVICTION = Eviction(
    cgroup=HOG,
    name="batch",
    channel=Channel.CPU,
    service="shop/web@default",
    blame=0.8,
    reason="shop/web@default suffers on cpu",
)


class Bench:
    """What carries out evictions on a node, and the pod that is to go."""

    def __init__(self, cluster: Cluster, client: Client, node: str, home: Path) -> None:
        self.cluster, self.node = cluster, node
        self.api = Api(cluster.kubeconfig(home / "agent.kubeconfig", client))
        self.worker = Worker(self.api)
        self.pod: Pod | None = None
        config = KubeEvictionConfig(True, MarkEffect.PREFER_NO_SCHEDULE, 600 * SECOND_NS)
        self.events = Events(self.api, self.worker, node)
        self.evictions = PodEvictions(
            self.api, self.worker, self.events, config, node, lambda _: self.pod
        )

    def evict(self, pod: Json) -> EvictionAnswer:
        self.pod = parse_pod(pod)
        assert self.evictions.request(EVICTION, Plan(time_ns=0), enforcing=True)
        answers: list[EvictionAnswer] = []
        eventually(
            "an answer", 10, lambda: bool(answers.extend(self.evictions.answers()) or answers)
        )
        return answers[0]

    def drained(self) -> None:
        """Wait until the worker has nothing to do."""
        done = threading.Event()
        self.worker.submit(done.set)
        assert done.wait(10)

    def marks(self) -> tuple[list[Any], Any]:
        node = self.cluster.admin.get(f"/api/v1/nodes/{self.node}")
        taints = [t for t in node["spec"].get("taints", []) if t["key"] == TAINT_KEY]
        return taints, node["metadata"].get("annotations", {}).get(TAINT_KEY)


@pytest.fixture
def make_bench(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(rules: list[Json] = RULES) -> Bench:
        node = cluster.new_name("node")
        cluster.make_node(node)
        if rules:
            cluster.grant(namespace, "default", rules)
        made.append(Bench(cluster, cluster.client(namespace, "default"), node, tmp_path))
        return made[-1]

    yield make
    for bench in made:
        bench.worker.close()
        assert bench.worker.failure is None


MakeBench = Callable[..., Bench]


def make_pod(bench: Bench, namespace: str, name: str = "batch") -> Json:
    """Make a pod that runs, as the server sees it."""
    bench.cluster.make_pod(namespace, name, node=bench.node, labels={"app": "batch"})
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"status": {"phase": "Running", "conditions": conditions}}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
    return bench.cluster.admin.patch(path, status)


def terminating(bench: Bench, namespace: str, name: str = "batch") -> bool:
    pod = bench.cluster.admin.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
    return "deletionTimestamp" in pod["metadata"]


def test_a_budget_refuses_then_allows_and_both_are_told(
    cluster: Cluster, namespace: str, make_bench: MakeBench
) -> None:
    bench = make_bench()
    pod = make_pod(bench, namespace)
    cluster.make_budget(namespace, "budget", {"app": "batch"}, allowed=0)
    refused = bench.evict(pod)
    assert refused.result is EvictionResult.REFUSED
    assert "disruption budget" in refused.message
    assert not terminating(bench, namespace)
    assert bench.marks() == ([], None)
    cluster.allow(namespace, "budget", 1)
    assert bench.evict(pod).result is EvictionResult.EVICTED
    assert terminating(bench, namespace)
    taints, until = bench.marks()
    assert taints == [{"key": TAINT_KEY, "effect": "PreferNoSchedule"}]
    assert until.startswith("20")
    bench.drained()
    told = cluster.kubectl("get", "events", "-n", namespace, "-o", "wide")
    assert "EvictionRefused" in told and "shop/web@default suffers on cpu" in told
    assert "it made latency-sensitive work wait for 0.80cpu" in told
    bench.evictions.remove_taint()
    bench.drained()
    assert bench.marks() == ([], None)


def test_only_the_pod_that_was_meant_is_evicted(namespace: str, make_bench: MakeBench) -> None:
    bench = make_bench()
    pod = make_pod(bench, namespace)
    other = {**pod, "metadata": {**pod["metadata"], "uid": pod["metadata"]["uid"][:-4] + "0000"}}
    assert bench.evict(other).result is EvictionResult.GONE
    assert not terminating(bench, namespace)
    gone = {**pod, "metadata": {**pod["metadata"], "name": "gone"}}
    assert bench.evict(gone).result is EvictionResult.GONE
    assert bench.marks() == ([], None)


def test_without_rights_nobody_is_evicted_and_nothing_breaks(
    namespace: str, make_bench: MakeBench
) -> None:
    bench = make_bench(RULES[:1])
    pod = make_pod(bench, namespace)
    answer = bench.evict(pod)
    assert (answer.result, answer.wait_ns) == (EvictionResult.HELD, 300 * SECOND_NS)
    assert not terminating(bench, namespace)
    assert bench.marks() == ([], None)


def test_without_the_right_to_mark_nobody_is_evicted(namespace: str, make_bench: MakeBench) -> None:
    bench = make_bench(RULES[1:])
    pod = make_pod(bench, namespace)
    assert bench.evict(pod).result is EvictionResult.HELD
    assert not terminating(bench, namespace)


def test_an_event_that_repeats_is_one_object(
    cluster: Cluster, namespace: str, make_bench: MakeBench
) -> None:
    bench = make_bench()
    pod = make_pod(bench, namespace)
    cluster.make_budget(namespace, "budget", {"app": "batch"}, allowed=0)
    for _ in range(3):
        assert bench.evict(pod).result is EvictionResult.REFUSED
    bench.drained()
    path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
    (event,) = cluster.admin.get(path)["items"]
    assert event["series"]["count"] == 3
    assert event["regarding"]["uid"] == pod["metadata"]["uid"]
    told = cluster.kubectl("describe", "pod", "batch", "-n", namespace)
    assert told.count("EvictionRefused") == 1


def test_an_event_about_the_node(cluster: Cluster, make_bench: MakeBench) -> None:
    bench = make_bench()
    regarding = Regarding("Node", "", bench.node, bench.node)
    bench.events.emit(regarding, "BestEffortSqueezed", "x" * 2000)
    bench.drained()
    selector = f"--field-selector=involvedObject.name={bench.node}"
    assert "BestEffortSqueezed" in cluster.kubectl("get", "events", "-n", "default", selector)
    assert not bench.worker.errors


def test_marking_among_others_who_taint_loses_no_taint(
    cluster: Cluster, make_bench: MakeBench
) -> None:
    bench = make_bench()
    path = f"/api/v1/nodes/{bench.node}"
    stop = threading.Event()
    written: list[str] = []

    def meddle() -> None:
        while not stop.is_set():
            node = cluster.admin.get(path)
            key = f"other-{len(written)}"
            node["spec"].setdefault("taints", []).append({"key": key, "effect": "NoSchedule"})
            try:
                cluster.admin.replace(path, node)
            except Refused:  # we were faster
                continue
            written.append(key)
            stop.wait(0.02)

    meddler = threading.Thread(target=meddle)
    meddler.start()
    mark = OverloadTaint(bench.api, bench.node, MarkEffect.NO_SCHEDULE, 600.0)
    try:
        for _ in range(10):
            mark.set()
            mark.remove()
    finally:
        stop.set()
        meddler.join()
    node = cluster.admin.get(path)
    assert len(written) > 5
    assert {taint["key"] for taint in node["spec"]["taints"]} == set(written)


def test_the_mark_of_who_was_killed_goes_at_the_next_start(
    cluster: Cluster, make_bench: MakeBench
) -> None:
    bench = make_bench()
    bench.drained()
    dead = OverloadTaint(bench.api, bench.node, MarkEffect.NO_SCHEDULE, 600.0)
    dead.set()
    assert bench.marks()[0]
    OverloadTaint(bench.api, bench.node, MarkEffect.NONE, 600.0).expire()
    assert bench.marks() == ([], None)
    assert not remove_taint(bench.api, bench.node)
    assert not remove_taint(bench.api, "no-such-node")


def test_the_mark_ends_with_its_time_and_nothing_else_changes(
    cluster: Cluster, make_bench: MakeBench
) -> None:
    now_s = 1000.0
    bench, other = make_bench(), make_bench()
    paths = [f"/api/v1/nodes/{each.node}" for each in (bench, other)]
    theirs = {
        "metadata": {"annotations": {"example.org/a": "1"}, "labels": {"example.org/b": "2"}},
        "spec": {"taints": [{"key": "example.org/c", "effect": "NoSchedule"}]},
    }
    for path in paths:
        cluster.admin.patch(path, theirs)
    # The neighbour's mark is not ours, whatever it says of its end.
    OverloadTaint(other.api, other.node, MarkEffect.NO_SCHEDULE, 1.0, lambda: now_s).set()
    before = [said_of(cluster.admin.get(path)) for path in paths]
    mark = OverloadTaint(bench.api, bench.node, MarkEffect.PREFER_NO_SCHEDULE, 600.0, lambda: now_s)
    mark.set()
    assert said_of(cluster.admin.get(paths[0])) != before[0]
    now_s += 599
    mark.expire()
    assert bench.marks()[0] and mark.present
    now_s += 1
    mark.expire()
    assert bench.marks() == ([], None) and not mark.present
    assert [said_of(cluster.admin.get(path)) for path in paths] == before
    assert other.marks()[0]


def said_of(node: Json) -> Json:
    """Return all of a node but what counts and names its changes."""
    bookkeeping = ("resourceVersion", "managedFields")
    metadata = {k: v for k, v in node["metadata"].items() if k not in bookkeeping}
    return {**node, "metadata": metadata}
