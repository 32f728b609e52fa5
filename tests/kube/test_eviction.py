# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Evictions, the overload taint and Events at a real API server, with minimal permissions."""

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
from controller.kube.reasons import Reason
from controller.workloads.pods.pod import Pod, parse_pod
from tests.kube.client import Client, Json
from tests.kube.cluster import Cluster
from tests.support.kube.limits import PATIENT
from tests.support.waiting import DEADLINE_S, eventually

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
    """The parts that carry out evictions on a node, and the pod to evict."""

    def __init__(self, cluster: Cluster, client: Client, node: str, home: Path) -> None:
        self.cluster, self.node = cluster, node
        self.api = Api(cluster.kubeconfig(home / "agent.kubeconfig", client), PATIENT)
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

        def has_answered() -> bool:
            answers.extend(self.evictions.answers())
            return bool(answers)

        eventually("an answer", has_answered)
        return answers[0]

    def drained(self) -> None:
        """Wait until the worker has run all jobs."""
        done = threading.Event()
        self.worker.submit(done.set)
        assert done.wait(DEADLINE_S)

    def taints(self) -> tuple[list[Any], Any]:
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
        # At its start it removes the taint of an earlier run, which a test's own would be.
        made[-1].drained()
        return made[-1]

    yield make
    for bench in made:
        bench.worker.close()
        assert bench.worker.failure is None


MakeBench = Callable[..., Bench]


def make_pod(bench: Bench, namespace: str, name: str = "batch") -> Json:
    """Make a pod with the status of a running one."""
    bench.cluster.make_pod(namespace, name, node=bench.node, labels={"app": "batch"})
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"status": {"phase": "Running", "conditions": conditions}}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
    return bench.cluster.admin.patch(path, status)


def terminating(bench: Bench, namespace: str, name: str = "batch") -> bool:
    pod = bench.cluster.admin.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
    return "deletionTimestamp" in pod["metadata"]


def test_a_budget_refuses_then_allows_and_both_make_events(
    cluster: Cluster, namespace: str, make_bench: MakeBench
) -> None:
    bench = make_bench()
    pod = make_pod(bench, namespace)
    cluster.make_budget(namespace, "budget", {"app": "batch"}, allowed=0)
    refused = bench.evict(pod)
    assert refused.result is EvictionResult.REFUSED
    assert "disruption budget" in refused.message
    assert not terminating(bench, namespace)
    assert bench.taints() == ([], None)
    cluster.allow(namespace, "budget", 1)
    assert bench.evict(pod).result is EvictionResult.EVICTED
    assert terminating(bench, namespace)
    taints, until = bench.taints()
    assert taints == [{"key": TAINT_KEY, "effect": "PreferNoSchedule"}]
    assert until.startswith("20")
    bench.drained()
    shown = cluster.kubectl("get", "events", "-n", namespace, "-o", "wide")
    assert "EvictionRefused" in shown and "a service of another namespace suffers on cpu" in shown
    assert "it made latency-sensitive work wait for 0.80cpu" in shown and "shop" not in shown
    bench.evictions.remove_taint()
    bench.drained()
    assert bench.taints() == ([], None)


def test_a_pod_with_another_uid_is_not_evicted(namespace: str, make_bench: MakeBench) -> None:
    bench = make_bench()
    pod = make_pod(bench, namespace)
    other = {**pod, "metadata": {**pod["metadata"], "uid": pod["metadata"]["uid"][:-4] + "0000"}}
    assert bench.evict(other).result is EvictionResult.GONE
    assert not terminating(bench, namespace)
    gone = {**pod, "metadata": {**pod["metadata"], "name": "gone"}}
    assert bench.evict(gone).result is EvictionResult.GONE
    assert bench.taints() == ([], None)


def test_without_the_permission_to_evict_the_eviction_is_held(
    namespace: str, make_bench: MakeBench
) -> None:
    bench = make_bench(RULES[:1])
    pod = make_pod(bench, namespace)
    answer = bench.evict(pod)
    assert (answer.result, answer.wait_ns) == (EvictionResult.HELD, 300 * SECOND_NS)
    assert not terminating(bench, namespace)
    assert bench.taints() == ([], None)


def test_without_the_permission_to_taint_no_pod_is_evicted(
    namespace: str, make_bench: MakeBench
) -> None:
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
    shown = cluster.kubectl("describe", "pod", "batch", "-n", namespace)
    assert shown.count("EvictionRefused") == 1


def test_an_event_about_the_node(cluster: Cluster, make_bench: MakeBench) -> None:
    bench = make_bench()
    regarding = Regarding("Node", "", bench.node, bench.node)
    bench.events.emit(regarding, Reason.SQUEEZED, "x" * 2000)
    bench.drained()
    selector = f"--field-selector=involvedObject.name={bench.node}"
    assert "BestEffortSqueezed" in cluster.kubectl("get", "events", "-n", "default", selector)
    assert not bench.worker.errors


def test_taints_of_another_writer_are_kept(
    cluster: Cluster, make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench()
    read, others, conflicts = bench.api.get, ["other-0"], 0

    def read_too_early(path: str) -> Json:
        """Return the node as it was before another writer added a taint."""
        nonlocal conflicts
        found, node = read(path), cluster.admin.get(path)
        if conflicts:
            conflicts -= 1
            others.append(f"other-{len(others)}")
            taint = {"key": others[-1], "effect": "NoSchedule"}
            node["spec"]["taints"].append(taint)
            cluster.admin.replace(path, node)
        return found

    def keys() -> set[str]:
        node = cluster.admin.get(f"/api/v1/nodes/{bench.node}")
        return {each["key"] for each in node["spec"]["taints"]}

    other = [{"key": others[0], "effect": "NoSchedule"}]
    cluster.admin.patch(f"/api/v1/nodes/{bench.node}", {"spec": {"taints": other}})
    monkeypatch.setattr(bench.api, "get", read_too_early)
    taint = OverloadTaint(bench.api, bench.node, MarkEffect.NO_SCHEDULE, 600.0)
    for change, ours in ((taint.set, {TAINT_KEY}), (taint.remove, set())):
        conflicts = 7  # after the eighth the change is given up
        change()
        assert conflicts == 0
        assert keys() == ours | {*others}


def test_the_next_start_removes_the_taint_of_a_killed_agent(
    cluster: Cluster, make_bench: MakeBench
) -> None:
    bench = make_bench()
    killed = OverloadTaint(bench.api, bench.node, MarkEffect.NO_SCHEDULE, 600.0)
    killed.set()
    assert bench.taints()[0]
    OverloadTaint(bench.api, bench.node, MarkEffect.NONE, 600.0).expire()
    assert bench.taints() == ([], None)
    assert not remove_taint(bench.api, bench.node)
    assert not remove_taint(bench.api, "no-such-node")


def test_the_taint_expires_and_nothing_else_changes(
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
    # The taint of another node is not removed, although it has expired.
    OverloadTaint(other.api, other.node, MarkEffect.NO_SCHEDULE, 1.0, lambda: now_s).set()
    before = [contents_of(cluster.admin.get(path)) for path in paths]
    effect = MarkEffect.PREFER_NO_SCHEDULE
    taint = OverloadTaint(bench.api, bench.node, effect, 600.0, lambda: now_s)
    taint.set()
    assert contents_of(cluster.admin.get(paths[0])) != before[0]
    now_s += 599
    taint.expire()
    assert bench.taints()[0] and taint.present
    now_s += 1
    taint.expire()
    assert bench.taints() == ([], None) and not taint.present
    assert [contents_of(cluster.admin.get(path)) for path in paths] == before
    assert other.taints()[0]


def contents_of(node: Json) -> Json:
    """Return a node without the metadata about its changes."""
    bookkeeping = ("resourceVersion", "managedFields")
    metadata = {k: v for k, v in node["metadata"].items() if k not in bookkeeping}
    return {**node, "metadata": metadata}
