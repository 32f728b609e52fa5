# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent's list of pods from a real API server, over a proxy that can be interrupted."""

from collections.abc import Iterator
import contextlib
from functools import partial
from pathlib import Path
from random import Random
import time

import pytest

from controller.kube.client.rate_limit import Backoff
from controller.kube.pod_watcher import PodWatcher
from controller.workloads.pods.pod import Pod
from tests.kube.cable import Cable
from tests.kube.client import Client, Refused
from tests.kube.cluster import Cluster
from tests.kube.counting_api import CountingApi
from tests.support.kube.limits import PATIENT
from tests.support.waiting import eventually

pytestmark = pytest.mark.kube

RULES = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]


@pytest.fixture
def node(cluster: Cluster) -> str:
    return cluster.new_name("node")


@pytest.fixture
def client(cluster: Cluster, namespace: str) -> Client:
    return cluster.client(namespace, "default")


@pytest.fixture
def api(cluster: Cluster, client: Client, cable: Cable, tmp_path: Path) -> CountingApi:
    return CountingApi(cluster.kubeconfig(tmp_path / "kubeconfig", client, cable.url), PATIENT)


class CountedBackoff(Backoff):
    """Short pauses, of which ``pauses`` is the number."""

    pauses = 0

    def next_s(self, retry_after_s: float | None = None) -> float:
        self.pauses += 1
        return super().next_s(retry_after_s)


@contextlib.contextmanager
def watching(api: CountingApi, node: str, backoff: Backoff | None = None) -> Iterator[PodWatcher]:
    watcher = PodWatcher(api, node, backoff=backoff)
    try:
        yield watcher
    finally:
        watcher.close()
        eventually("the end of its thread", lambda: not watcher._thread.is_alive())
        assert watcher.failure is None


@pytest.fixture
def backoff() -> CountedBackoff:
    return CountedBackoff(Random(7), first_s=0.1)


@pytest.fixture
def watcher(
    cluster: Cluster, namespace: str, api: CountingApi, node: str, backoff: CountedBackoff
) -> Iterator[PodWatcher]:
    cluster.grant(namespace, "default", RULES)
    with watching(api, node, backoff) as watcher:
        eventually("the first list", lambda: watcher.pods.synced)
        yield watcher


def names(watcher: PodWatcher) -> set[str]:
    return {pod.name for pod in watcher.pods.pods.values()}


def knows(watcher: PodWatcher, name: str) -> bool:
    return name in names(watcher)


def test_changes_of_the_node_s_pods_are_read_with_one_list(
    cluster: Cluster, namespace: str, node: str, api: CountingApi, watcher: PodWatcher
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    cluster.make_pod(namespace, "elsewhere", node="elsewhere")
    cluster.make_pod(namespace, "one", node=node)
    cluster.make_pod(namespace, "two", node=node, qos="Guaranteed")
    eventually("both", lambda: names(watcher) == {"one", "two"})
    cluster.admin.patch(
        f"{pods}/one", {"metadata": {"labels": {"sweetpoint.dev/qos": "best-effort"}}}
    )

    def found() -> dict[str, Pod]:
        return {pod.name: pod for pod in watcher.pods.pods.values()}

    eventually("the label", lambda: "sweetpoint.dev/qos" in found()["one"].labels)
    assert found()["two"].qos_class == "Guaranteed"
    # Bound and never started: kubelet completes the deletion.
    cluster.admin.delete(f"{pods}/two")
    eventually("the begin of the deletion", lambda: found()["two"].terminating)
    cluster.admin.delete(f"{pods}/two?gracePeriodSeconds=0")
    eventually("the deletion", lambda: names(watcher) == {"one"})
    assert (api.lists, watcher.problem) == (1, "")


def test_an_interrupted_watch_is_resumed(
    cluster: Cluster,
    namespace: str,
    node: str,
    api: CountingApi,
    watcher: PodWatcher,
    cable: Cable,
) -> None:
    for number in range(3):
        cable.cut()
        cluster.make_pod(namespace, f"pod-{number}", node=node)
        eventually("the pod", partial(knows, watcher, f"pod-{number}"))
    assert api.lists == 1
    assert watcher.pods.synced


def test_after_a_compaction_there_is_one_list_and_a_new_watch(
    cluster: Cluster,
    namespace: str,
    node: str,
    api: CountingApi,
    watcher: PodWatcher,
    cable: Cable,
    backoff: CountedBackoff,
) -> None:
    early = cluster.make_pod(namespace, "early", node=node)
    cluster.make_pod(namespace, "gone", node=node)
    eventually("the pods", lambda: names(watcher) == {"early", "gone"})
    # These changes do not reach the agent.
    cable.hold()
    pods = f"/api/v1/namespaces/{namespace}/pods"
    cluster.admin.delete(f"{pods}/gone?gracePeriodSeconds=0")
    cluster.make_pod(namespace, "between", node=node)
    cable.cut()
    cluster.plane.stop_server()
    cable.release()
    try:
        stopped_ns, refused = time.monotonic_ns(), watcher.errors.get("unreachable", 0)
        before = backoff.pauses - cable.connections
        eventually("refusals", lambda: watcher.errors["unreachable"] >= refused + 3)
        cluster.plane.compact()
        assert names(watcher) == {"early", "gone"} and watcher.pods.synced
        # The list's age counts from before, and there is a pause after each connection.
        assert age_s(watcher, stopped_ns + 10**9) >= 1
        assert backoff.pauses - cable.connections >= before - 1
    finally:
        cluster.plane.start_server()
    # A server that is starting may refuse a watch for another reason.
    eventually("the compaction", lambda: is_past(cluster, early["metadata"]["resourceVersion"]))
    eventually("the current pods", lambda: names(watcher) == {"early", "between"})
    assert (api.lists, watcher.problem) == (2, "")
    late_ns = time.monotonic_ns()
    cluster.make_pod(namespace, "late", node=node)
    eventually("the late pod", lambda: names(watcher) == {"early", "between", "late"})
    assert api.lists == 2
    # The pods are published before the time of the contact.
    eventually("the contact", lambda: age_s(watcher, late_ns) == 0)


def age_s(watcher: PodWatcher, now_ns: int) -> float:
    found = watcher.age_s(now_ns)
    assert found is not None
    return found


def is_past(cluster: Cluster, version: str) -> bool:
    """Whether the server answers a watch from *version* with 410 Gone."""
    query = f"watch=1&timeoutSeconds=5&resourceVersion={version}"
    try:
        event = cluster.admin.get(f"/api/v1/pods?{query}")
    except Refused as refusal:
        return refusal.status == 410
    return bool(event["object"].get("code") == 410)


def test_a_missing_permission_is_reported_and_a_later_grant_is_used(
    cluster: Cluster, namespace: str, node: str, api: CountingApi
) -> None:
    with watching(api, node) as watcher:
        eventually("a refusal", lambda: watcher.errors.get("403"))
        assert "forbidden" in watcher.problem.lower()
        assert not watcher.pods.synced
        cluster.grant(namespace, "default", RULES)
        eventually("the list", lambda: watcher.pods.synced)
        assert watcher.problem == ""
