# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Before an uninstallation, when a part of what is cleaned up is gone or fails."""

from typing import Any

import pytest

from controller.kube import cleanup
from controller.kube.cleanup import RetireError, retire
from controller.kube.client.api import Api
from controller.kube.client.errors import ApiError, ApiUnreachable
from controller.kube.overload_taint import OverloadTaint
from tests.support.kube.api_stand_in import ApiStandIn, Asked, status
from tests.unit.kube.objects import FOREIGN, NODE, taints_and_end

Json = dict[str, Any]

DAEMON_SET = "/apis/apps/v1/namespaces/system/daemonsets/agents"
PODS, NODES = "/api/v1/namespaces/system/pods", "/api/v1/nodes"


class Cluster:
    """What the Job sees: lists of pods and nodes. Each list of pods takes one away."""

    def __init__(self, server: ApiStandIn) -> None:
        self.server = server
        self.pods: list[Json] = []
        self.selectors: list[str] = []
        self.broken = ""
        server.before = self.answer

    def answer(self, asked: Asked) -> tuple[int, Json] | None:
        path, _, query = asked.path.partition("?")
        if path == PODS:
            self.selectors.append(query)
            found = list(self.pods)
            if self.pods and "ends" in self.pods[-1]["metadata"]:
                del self.pods[-1]
            return 200, {"items": found}
        if path == NODES:
            nodes = [body for key, body in self.server.objects.items() if key.startswith(NODES)]
            return 200, {"metadata": {"resourceVersion": "1"}, "items": nodes}
        if self.broken and path == f"{NODES}/{self.broken}" and asked.method == "PATCH":
            return status(403, "a webhook denied the request")
        return None

    def add_pod(self, owner: str = "agents", *, ends: bool = False, node: str = "n1") -> None:
        owners = [{"kind": "DaemonSet", "name": owner}] if owner else []
        metadata: Json = {"ownerReferences": owners} | ({"ends": True} if ends else {})
        self.pods.append({"metadata": metadata, "spec": {"nodeName": node}})


@pytest.fixture
def cluster(server: ApiStandIn) -> Cluster:
    server.objects[NODE]["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
    return Cluster(server)


def test_without_the_daemon_set_nodes_are_cleaned_up(
    cluster: Cluster, api: Api, taint: OverloadTaint, caplog: pytest.LogCaptureFixture
) -> None:
    taint.set()
    retire(api, "system", "agents", 0)
    assert taints_and_end(cluster.server) == ([FOREIGN], None)
    assert "there is no DaemonSet system/agents" in caplog.text
    retire(api, "system", "agents", 0)  # the Job may be tried again
    assert "app.kubernetes.io%2Fname%3Dsweetpoint&" in f"{cluster.selectors[0]}&"


@pytest.mark.parametrize("owner", ["agents", ""])
def test_pods_that_it_left_are_waited_for(
    cluster: Cluster, api: Api, taint: OverloadTaint, owner: str
) -> None:
    taint.set()
    cluster.add_pod(owner)
    with pytest.raises(RetireError, match=r"1 agents still run after 0s; their DaemonSet is gone"):
        retire(api, "system", "agents", 0)
    assert taints_and_end(cluster.server) != ([FOREIGN], None), "agents may set it again"
    cluster.pods[0]["metadata"]["ends"] = True
    retire(api, "system", "agents", 60)
    assert taints_and_end(cluster.server) == ([FOREIGN], None)


def test_pods_of_another_release_are_not(cluster: Cluster, api: Api) -> None:
    cluster.add_pod("other-agents")
    retire(api, "system", "agents", 0)


def test_a_daemon_set_that_goes_meanwhile(cluster: Cluster, api: Api) -> None:
    labels = {"matchLabels": {"app": "x"}}
    cluster.server.put(DAEMON_SET, {"metadata": {"generation": 2}, "spec": {"selector": labels}})
    answer = cluster.answer

    def remove_after_the_patch(asked: Asked) -> tuple[int, Json] | None:
        if asked.method == "GET":
            cluster.server.objects.pop(DAEMON_SET, None)
        return answer(asked)

    cluster.server.before = remove_after_the_patch
    cluster.add_pod(ends=True)
    retire(api, "system", "agents", 60)
    assert len(cluster.selectors) == 2


def test_a_server_that_is_away_meanwhile_is_asked_again(
    cluster: Cluster, api: Api, taint: OverloadTaint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "_POLL_S", 0.01)
    taint.set()
    answer, asked = cluster.answer, list[Asked]()

    def break_off_every_second(each: Asked) -> tuple[int, Json] | None:
        asked.append(each)
        return (0, {}) if len(asked) < 12 and len(asked) % 2 == 0 else answer(each)

    cluster.server.before = break_off_every_second
    retire(api, "system", "agents", 60)
    assert taints_and_end(cluster.server) == ([FOREIGN], None)
    # A server that has just started has not read the roles yet.
    answers = [None, (0, {}), status(403, "no permission"), status(403, "no permission")]
    cluster.server.before = lambda each: answers.pop(0) if len(answers) > 1 else answer(each)
    retire(api, "system", "agents", 60)
    cluster.server.before = lambda _: (0, {})
    with pytest.raises(ApiUnreachable):
        retire(api, "system", "agents", 600)  # it never answered: at once


def test_other_errors_still_fail(cluster: Cluster, api: Api) -> None:
    cluster.server.before = lambda _: status(403, "no permission")
    with pytest.raises(ApiError, match="403"):
        retire(api, "system", "agents", 0)


def test_a_node_that_fails_does_not_keep_the_others(
    cluster: Cluster, api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    marked = {"taints": [FOREIGN, {"key": "sweetpoint.dev/overloaded", "effect": "NoSchedule"}]}
    for name in ("n0", "n1", "n2"):
        cluster.server.put(f"{NODES}/{name}", {"metadata": {"name": name}, "spec": marked})
    cluster.broken = "n0"
    with pytest.raises(RetireError, match="1 nodes are not cleaned up, n0 among them"):
        retire(api, "system", "agents", 0)
    assert "node n0: taint or reclaimable capacity may be left: 403" in caplog.text
    for name in ("n1", "n2"):
        assert cluster.server.objects[f"{NODES}/{name}"]["spec"]["taints"] == [FOREIGN]
