# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Before an uninstallation: all agents end, with the permissions of the chart's hook."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import re

import pytest

from controller.config.sections.eviction import MarkEffect
from controller.kube import cleanup
from controller.kube.cleanup import NOWHERE, RetireError, retire
from controller.kube.client.api import Api
from controller.kube.client.errors import ApiError
from controller.kube.extended_resources import NodeResources
from controller.kube.overload_taint import OverloadTaint
from tests.kube.client import Json
from tests.kube.cluster import Cluster
from tests.kube.counting_api import CountingApi
from tests.kube.installed import Installed
from tests.support.kube.limits import PATIENT
from tests.support.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.kube

# What kubelet does when all containers have ended.
NOW = ("--grace-period=0", "--force")
README = Path(__file__).parents[2] / "deploy" / "chart" / "README.md"


class Release:
    """A release; the test acts as the controller of its DaemonSet."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self.installed = installed = Installed(cluster, {})
        installed.create_hooks()
        self.namespace, self.name = installed.namespace, installed.name
        self._cluster, self._admin = cluster, cluster.admin
        client = cluster.client(self.namespace, f"{self.name}-uninstall")
        self.api = CountingApi(cluster.kubeconfig(home / "kubeconfig", client), PATIENT)
        self._path = f"/apis/apps/v1/namespaces/{self.namespace}/daemonsets/{self.name}"

    def selector(self) -> Json:
        """Return the node selector of the DaemonSet."""
        return dict(self._admin.get(self._path)["spec"]["template"]["spec"]["nodeSelector"])

    def report(self, *, scheduled: int, misscheduled: int) -> None:
        """Set the number of nodes with a pod, as of the DaemonSet's last change."""
        found = self._admin.get(self._path)
        found["status"] = {
            "currentNumberScheduled": scheduled,
            "numberMisscheduled": misscheduled,
            "desiredNumberScheduled": scheduled,
            "numberReady": scheduled,
            "observedGeneration": found["metadata"]["generation"],
        }
        self._admin.replace(f"{self._path}/status", found)

    def agent_on(self, node: str) -> str:
        """Make the pod of an agent on *node* and return its path."""
        labels = self._admin.get(self._path)["spec"]["selector"]["matchLabels"]
        name = self._cluster.new_name("agent")
        self._cluster.make_pod(self.namespace, name, node=node, labels=labels)
        return f"/api/v1/namespaces/{self.namespace}/pods/{name}"

    def retire(self, timeout_s: float) -> None:
        """Do what the hook does."""
        retire(self.api, self.namespace, self.name, timeout_s)


@pytest.fixture
def release(cluster: Cluster, tmp_path: Path) -> Release:
    return Release(cluster, tmp_path)


def test_it_waits_until_every_agent_has_ended(
    cluster: Cluster, release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "_POLL_S", 0.05)
    # Ready, so that it is waited for.
    node = cluster.new_name("node")
    cluster.make_node(node)
    pod = release.agent_on(node)
    release.report(scheduled=2, misscheduled=0)
    with ThreadPoolExecutor(1) as pool:
        hook = pool.submit(release.retire, DEADLINE_S)

        def goes_on(why: str) -> None:
            """Check that it waits, after it has looked at the present state."""
            seen = release.api.gets
            eventually("more looks", lambda: release.api.gets >= seen + 4 or hook.done())
            assert not hook.done(), why

        eventually("the node selector", lambda: NOWHERE in release.selector())
        # The other fields stay: without the selector the DaemonSet is as before.
        assert release.selector()["kubernetes.io/os"] == "linux"
        goes_on("the controller has not looked yet")
        release.report(scheduled=0, misscheduled=2)
        goes_on("two agents still clean up")
        release.report(scheduled=0, misscheduled=0)
        cluster.admin.delete(pod)
        goes_on("an agent is ending, which the controller does not count")
        cluster.kubectl(
            "delete", "pod", pod.rpartition("/")[2], f"--namespace={release.namespace}", *NOW
        )
        hook.result(DEADLINE_S)


def test_agents_that_do_not_end_are_reported_and_can_be_restarted(
    cluster: Cluster, release: Release
) -> None:
    release.report(scheduled=3, misscheduled=0)
    before = release.selector()
    with pytest.raises(RetireError, match="3 agents still run"):
        release.retire(0)
    assert release.selector() != before
    (patch,) = re.findall(r"-p '(.+)'", README.read_text())
    which = ("--namespace", release.namespace, "daemonset", release.name)
    cluster.kubectl("patch", *which, "--type=json", "-p", patch)
    assert release.selector() == before


def test_a_node_that_is_not_ready_does_not_fail_it(
    cluster: Cluster, release: Release, caplog: pytest.LogCaptureFixture
) -> None:
    away, well = cluster.new_name("node"), cluster.new_name("node")
    for node in (away, well):
        cluster.make_node(node)
        release.agent_on(node)
    unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    status = {"status": {"conditions": [unknown]}}
    cluster.admin.patch(f"/api/v1/nodes/{away}/status", status)
    with pytest.raises(RetireError):
        release.retire(0)
    release.report(scheduled=0, misscheduled=2)
    with pytest.raises(RetireError, match="2 agents still run"):
        release.retire(0)
    # The agent on the node that is Ready has ended.
    pods = f"/api/v1/namespaces/{release.namespace}/pods"
    for pod in cluster.admin.get(pods)["items"]:
        if pod["spec"]["nodeName"] == well:
            cluster.admin.create(f"{pods}/{pod['metadata']['name']}/eviction", now(pod))
    release.report(scheduled=0, misscheduled=1)
    release.retire(0)
    assert f"{away}: not Ready" in caplog.text
    assert well not in caplog.text


def test_it_removes_what_agents_left_on_nodes(cluster: Cluster, release: Release) -> None:
    admin, node, other = cluster.admin, cluster.new_name("node"), cluster.new_name("node")
    foreign = {"key": "example.org/maintenance", "effect": "NoSchedule"}
    for name in (node, other):
        cluster.make_node(name)
        admin.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": [foreign]}})
    untouched = admin.get(f"/api/v1/nodes/{other}")
    api = Api(cluster.kubeconfig(cluster.plane.home / f"{node}.kubeconfig", admin), PATIENT)
    OverloadTaint(api, node, MarkEffect.NO_SCHEDULE, 600).set()
    NodeResources(api, node).publish({"example.org/spare": 4}, 60)
    release.report(scheduled=0, misscheduled=0)
    with pytest.raises(RetireError):
        release.retire(0)
    assert admin.get(f"/api/v1/nodes/{node}")["spec"]["taints"] != [foreign], "agents may run"
    release.report(scheduled=0, misscheduled=0)
    release.retire(DEADLINE_S)
    cleaned = admin.get(f"/api/v1/nodes/{node}")
    assert cleaned["spec"]["taints"] == [foreign]
    assert "example.org/spare" not in cleaned["status"]["capacity"]
    assert not any("sweetpoint" in key for key in cleaned["metadata"].get("annotations", {}))
    assert admin.get(f"/api/v1/nodes/{other}") == untouched


def now(pod: Json) -> Json:
    """Return the eviction that removes *pod* at once."""
    options = {"gracePeriodSeconds": 0}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "deleteOptions": options}
    return {**body, "metadata": {"name": pod["metadata"]["name"]}}


def test_the_permissions_are_for_this_daemon_set_only(release: Release) -> None:
    with pytest.raises(ApiError) as refused:
        retire(release.api, release.namespace, "another", 0)
    assert refused.value.status == 403
    with pytest.raises(ApiError) as refused:
        release.api.get("/api/v1/pods")
    assert refused.value.status == 403
