# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``helm uninstall`` on a real node: a part of the release is gone, or the API server is away."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from helm_python import HelmError
import pytest

from controller.config.sections.eviction import MarkEffect
from controller.kube.client.api import Api
from controller.kube.overload_taint import OverloadTaint
from tests.kube.client import Json
from tests.kube.hogs import wait_for_idle, without_levels
from tests.kube.node_programs import NODE
from tests.kube.real_node import RealNode
from tests.kube.release import NAMESPACE, Release
from tests.support.kube.limits import PATIENT
from tests.support.waiting import DEADLINE_S

pytestmark = [pytest.mark.kernel, pytest.mark.kube]

ENFORCE = "pod-security.kubernetes.io/enforce"
OURS = "app.kubernetes.io/name in (sweetpoint, sweetpoint-uninstall)"


def leave_alone(release: Release) -> None:
    release.uninstall()


def delete_the_daemon_set(release: Release) -> None:
    release.node.cluster.kubectl("delete", "daemonset", "sweetpoint", f"--namespace={NAMESPACE}")
    release.uninstall()


def restrict_the_namespace(release: Release) -> None:
    # As a cluster's administrator may do, by hand or by a policy: privileged pods are refused then.
    label = ("label", "--overwrite", "namespace", NAMESPACE)
    release.node.cluster.kubectl(*label, f"{ENFORCE}=restricted")
    try:
        release.uninstall()
    finally:
        release.node.cluster.kubectl(*label, f"{ENFORCE}-")


def remove_the_permissions(release: Release) -> None:
    kinds = "clusterroles,clusterrolebindings,roles,rolebindings"
    release.node.cluster.kubectl("delete", kinds, "--selector", OURS, f"--namespace={NAMESPACE}")
    release.uninstall()


def restart_the_api_server(release: Release) -> None:
    node = release.node
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(release.uninstall)
        node.wait("the pod of the hook", release.hooks)
        node.cluster.plane.stop_server()
        node.cluster.plane.start_server()
        try:
            first.result(DEADLINE_S)
        except HelmError:  # Helm lost its connection: what it says is to do it again
            release.uninstall()


# Without Helm and agents they are in test_retire_gone.py as well.
DISTURBANCES = (
    pytest.param(leave_alone, marks=pytest.mark.soak),
    delete_the_daemon_set,
    pytest.param(restrict_the_namespace, marks=pytest.mark.soak),
    pytest.param(remove_the_permissions, marks=pytest.mark.soak),
    pytest.param(restart_the_api_server, marks=pytest.mark.soak),
)


def objects(node: RealNode) -> list[str]:
    """Return the names of all objects of releases in the cluster, of every kind."""
    kubectl = node.cluster.kubectl
    kinds = kubectl("api-resources", "--verbs=list", "--output=name").split()
    listed = ("--all-namespaces", "--output=name", "--ignore-not-found")
    ours = kubectl("get", ",".join(kinds), *listed, "--selector", OURS).split()
    return ours + kubectl("get", "secrets", *listed, "--selector", "owner=helm").split()


def marks(node: RealNode) -> Json:
    """Return what is ours on the Node object."""
    found = node.cluster.admin.get(f"/api/v1/nodes/{NODE}")
    keys = [each["key"] for each in found["spec"].get("taints", ())]
    keys += [*found["metadata"].get("annotations", {}), *found["metadata"].get("labels", {})]
    return {key: True for key in keys if "sweetpoint" in key}


@pytest.mark.parametrize("uninstall", DISTURBANCES)
def test_nothing_is_left(release: Release, busy: str, uninstall: Callable[[Release], None]) -> None:
    node = release.node
    wait_for_idle(release, busy)
    # As an agent leaves it that is killed while the node is overloaded.
    api = Api(node.admin_kubeconfig, PATIENT)
    OverloadTaint(api, NODE, MarkEffect.PREFER_NO_SCHEDULE, 600).set()
    assert objects(node) and marks(node)
    uninstall(release)
    assert without_levels(release.knobs()) == without_levels(release.before)
    node.wait("the end of all objects", lambda: not objects(node))
    assert marks(node) == {}
