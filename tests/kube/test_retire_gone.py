# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The uninstallation of a release whose DaemonSet was deleted, with the hook's permissions."""

from pathlib import Path

import pytest

from controller.config.sections.eviction import MarkEffect
from controller.kube.client.api import Api
from controller.kube.overload_taint import OverloadTaint
from tests.kube.cluster import Cluster
from tests.kube.test_retire import Release

pytestmark = pytest.mark.kube


def test_a_deleted_daemon_set_is_no_agents(cluster: Cluster, tmp_path: Path) -> None:
    release = Release(cluster, tmp_path)
    node = cluster.new_name("node")
    cluster.make_node(node)
    api = Api(cluster.kubeconfig(tmp_path / "admin", cluster.admin))
    OverloadTaint(api, node, MarkEffect.NO_SCHEDULE, 600).set()
    daemon_set = ("daemonset", release.name, f"--namespace={release.namespace}")
    cluster.kubectl("delete", *daemon_set)
    release.retire(0)
    assert not cluster.admin.get(f"/api/v1/nodes/{node}")["spec"].get("taints")
