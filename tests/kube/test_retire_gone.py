# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The hook of an uninstallation, with its permissions, when a part of the release is gone.

With Helm, agents and a real node: ``test_uninstall.py``.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from controller.config.sections.eviction import MarkEffect
from controller.kube.cleanup import NOWHERE
from controller.kube.client.api import Api
from controller.kube.overload_taint import OverloadTaint
from tests.kube.cluster import Cluster
from tests.kube.test_retire import Release
from tests.support.kube.limits import PATIENT
from tests.support.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.kube


@pytest.fixture
def release(cluster: Cluster, tmp_path: Path) -> Iterator[Release]:
    """A release whose agent left its taint on a node; the hook has to remove it."""
    release = Release(cluster, tmp_path)
    node = cluster.new_name("node")
    cluster.make_node(node)
    api = Api(cluster.kubeconfig(tmp_path / "admin", cluster.admin), PATIENT)
    OverloadTaint(api, node, MarkEffect.NO_SCHEDULE, 600).set()
    yield release
    found = cluster.admin.get(f"/api/v1/nodes/{node}")
    assert not found["spec"].get("taints")
    assert not any("sweetpoint" in key for key in found["metadata"].get("annotations", {}))


def retire(release: Release, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Do what the hook does; the controller ends the agents while it waits."""
    with ThreadPoolExecutor(1) as pool:
        hook = pool.submit(release.retire, DEADLINE_S)
        eventually("the node selector", lambda: NOWHERE in release.selector())
        meanwhile()
        release.report(scheduled=0, misscheduled=0)
        hook.result(DEADLINE_S)


def test_a_deleted_daemon_set_is_no_agents(cluster: Cluster, release: Release) -> None:
    cluster.kubectl("delete", "daemonset", release.name, f"--namespace={release.namespace}")
    release.retire(0)


def test_without_the_permissions_of_the_agents(cluster: Cluster, release: Release) -> None:
    kinds = "clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts"
    for kind in kinds.split(","):
        named = (release.name, "--ignore-not-found", f"--namespace={release.namespace}")
        cluster.kubectl("delete", kind, *named)
    retire(release)


def test_in_a_namespace_that_refuses_privileged_pods(cluster: Cluster, release: Release) -> None:
    level = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", release.namespace, level)
    pods = f"/api/v1/namespaces/{release.namespace}/pods"
    cluster.admin.create(pods, release.installed.hook_pod)
    retire(release)


def test_the_api_server_restarts_meanwhile(cluster: Cluster, release: Release) -> None:
    def restart() -> None:
        cluster.plane.stop_server()
        cluster.plane.start_server()

    retire(release, restart)
