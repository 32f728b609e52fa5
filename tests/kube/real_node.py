# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A real node: API server, controllers, containerd, kubelet and a network for pods."""

from collections.abc import Mapping
import contextlib
import json
import socket

from tests.kernel.netns import entered
from tests.kube.cable import Cable
from tests.kube.client import Json, Refused
from tests.kube.cluster import Cluster
from tests.kube.control_plane import SERVICE_IP, ControlPlane
from tests.kube.node_programs import NODE, NodePrograms, container
from tests.kube.own_host import OwnHost
from tests.support.temporary import Temporary

__all__ = ("RealNode",)

_ADDRESS = "10.77.0.1"


class RealNode(NodePrograms, Temporary):
    """A node and its control plane; ``cluster`` is the API server, ``log`` returns a log.

    :param host: the place of all programs.
    """

    def __init__(self, host: OwnHost) -> None:
        super().__init__(host)
        self._stack = contextlib.ExitStack()

    def make(self) -> None:
        """Start the control plane, the container runtime and kubelet; wait for the node."""
        self._make_network()
        self.cluster = self._start_control_plane()
        self.start_containerd()
        self.import_images()
        kubeconfig = f"--kubeconfig={self.admin_kubeconfig}"
        self.kubelet_arguments = (kubeconfig, f"--node-ip={_ADDRESS}")
        self.start_kubelet()
        self.wait("the node to be ready", self.is_ready)

    def close(self) -> None:
        """End every program; pods end with the host's cgroups."""
        super().close()
        self._stack.close()

    def make_namespace(self, name: str) -> str:
        """Make a namespace, wait for its service account ``default`` and return its name."""
        self.cluster.admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        self.wait("the service account", lambda: self.cluster.admin.get(account))
        return name

    def run_pod(
        self,
        namespace: str,
        name: str,
        resources: Mapping[str, object],
        command: str = "sleep 1000000",
        *,
        labels: Mapping[str, str] | None = None,
        spec: Mapping[str, object] | None = None,
    ) -> Json:
        """Make a pod of one container on this node and return it when it runs."""
        self.make_pod(namespace, name, resources, command, labels=labels, spec=spec)
        return self.wait(f"{name} to run", lambda: self._if_phase(namespace, name, "Running"))

    def make_pod(
        self,
        namespace: str,
        name: str,
        resources: Mapping[str, object],
        command: str = "sleep 1000000",
        *,
        labels: Mapping[str, str] | None = None,
        spec: Mapping[str, object] | None = None,
    ) -> Json:
        """Make a pod of one container on this node."""
        body = {
            "metadata": {"name": name, "labels": dict(labels or {})},
            "spec": {
                "nodeName": NODE,
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "containers": [container("main", resources, command)],
                **(spec or {}),
            },
        }
        return self.cluster.admin.create(f"/api/v1/namespaces/{namespace}/pods", body)

    def pod(self, namespace: str, name: str) -> Json:
        """Return a pod."""
        return self.cluster.admin.get(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def delete_pod(self, namespace: str, name: str) -> None:
        """Delete a pod and wait until it is gone."""
        self.cluster.admin.delete(f"/api/v1/namespaces/{namespace}/pods/{name}")
        self.wait(f"{name} to be gone", lambda: self._is_gone(namespace, name))

    def _if_phase(self, namespace: str, name: str, phase: str) -> Json | None:
        pod = self.pod(namespace, name)
        return pod if pod["status"].get("phase") == phase else None

    def _is_gone(self, namespace: str, name: str) -> bool:
        try:
            self.pod(namespace, name)
        except Refused as refused:
            return refused.status == 404
        return False

    def is_ready(self) -> bool:
        """Whether the node reports that it is ready."""
        node = self.cluster.admin.get(f"/api/v1/nodes/{NODE}")
        conditions = node["status"].get("conditions", [])
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def _make_network(self) -> None:
        for command in (
            # Without an address of its own it takes the lowest of its ports, which changes with the
            # pods. Packets of the others to the old address are lost for ten seconds.
            "link add node0 address 02:00:0a:4d:00:01 type bridge",
            f"address add {_ADDRESS}/24 dev node0",
            "link set node0 up",
            # kubelet wants a default route. This one leads nowhere.
            "route add default via 10.77.0.254",
            f"address add {SERVICE_IP}/32 dev lo",
        ):
            self.host.run("ip", *command.split())
        addresses = {"subnet": "10.77.0.0/24", "rangeStart": "10.77.0.10", "gateway": _ADDRESS}
        routes = [{"dst": "0.0.0.0/0"}]  # to the API server
        bridge = {
            **{"type": "bridge", "bridge": "node0", "ipMasq": False},
            "ipam": {"type": "host-local", "ranges": [[addresses]], "routes": routes},
        }
        network = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}
        file = self._home / "var-lib/cni/net.d/10-pods.conflist"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(network))

    def _start_control_plane(self) -> Cluster:
        home = self._home / "control-plane"
        home.mkdir()
        plane = ControlPlane(home, self.host.in_network)
        network = self.host.network
        # The tests use the same URL as the programs inside.
        near = socket.create_server(("127.0.0.1", plane.port))
        self._stack.enter_context(Cable(plane.port, listener=near, namespace=network))
        with entered(network):
            service = socket.create_server((SERVICE_IP, 443))
        self._stack.enter_context(Cable(plane.port, listener=service, namespace=network))
        self._stack.enter_context(plane)
        cluster = Cluster(plane)
        self.admin_kubeconfig = cluster.kubeconfig(self._home / "admin.kubeconfig", plane.admin)
        plane.start_controllers(self.admin_kubeconfig)
        return cluster
