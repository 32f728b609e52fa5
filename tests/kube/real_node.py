# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A real node: API server, controllers, containerd, kubelet and a network for pods."""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import json
import os
from pathlib import Path
import shutil
import signal
import socket
import time
from typing import TypeVar

from controller.demo.programs import Process, start
from tests.kernel.netns import entered
from tests.kube.cable import Cable
from tests.kube.client import Json, Refused
from tests.kube.cluster import Cluster
from tests.kube.control_plane import SERVICE_IP, ControlPlane, program
from tests.kube.images import save_files
from tests.kube.own_host import OwnHost

__all__ = ("BUSYBOX", "NODE", "RealNode", "container")

NODE = "real"
BUSYBOX = "example.org/busybox:local"
_PAUSE = "example.org/pause:local"
_ADDRESS = "10.77.0.1"
_SOCKET = "/run/containerd/containerd.sock"
_CNI_PLUGINS = Path("/usr/lib/cni")
_SYS_RESOURCE = 1 << 24  # include/uapi/linux/capability.h
_T = TypeVar("_T")

# The sandbox's image is local; without CAP_SYS_RESOURCE no oom_score_adj can be lowered.
_CONTAINERD = """\
version = 3
disabled_plugins = [
    "io.containerd.snapshotter.v1.blockfile", "io.containerd.tracing.processor.v1.otlp",
    "io.containerd.internal.v1.tracing",
]
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{plugins}"]
    conf_dir = "/var/lib/cni/net.d"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "{runc}"
      SystemdCgroup = {systemd}
"""
# Removes what root of a container-like machine does not have, which runc would fail to give away.
_RUNC = """\
#!/bin/sh
for word; do
    [ "$before" = --bundle ] &&
        sed -i 's/"CAP_SYS_RESOURCE",//g; s/,"CAP_SYS_RESOURCE"//g' "$word/config.json"
    before=$word
done
exec {runc} "$@"
"""
_KUBELET: Json = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "containerRuntimeEndpoint": f"unix://{_SOCKET}",
    "enforceNodeAllocatable": ["pods"],
    # From 1.35 on kubelet refuses cgroup v1 by default.
    "failCgroupV1": False,
    "failSwapOn": False,
    # How full the disk of the machine is does not matter here.
    "evictionHard": {
        "memory.available": "50Mi",
        **dict.fromkeys(("nodefs.available", "nodefs.inodesFree"), "0%"),
        **dict.fromkeys(("imagefs.available", "imagefs.inodesFree"), "0%"),
    },
    "imageGCHighThresholdPercent": 100,
    # Its own API is reached from its network only.
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "makeIPTablesUtilChains": False,
    "readOnlyPort": 0,
    "resolvConf": "",
    "staticPodPath": "/var/lib/kubelet-static",
    "volumePluginDir": "/var/lib/kubelet-plugins",
    "fileCheckFrequency": "1s",
    "nodeStatusUpdateFrequency": "5s",
    # Root of a container-like machine has no CAP_SYS_RESOURCE.
    "oomScoreAdj": 0,
    "logging": {"verbosity": 2},
}


class RealNode:
    """A node and its control plane; ``cluster`` is the API server, ``log`` returns a log.

    :param host: the place of all programs.
    :param driver: kubelet's cgroup driver, ``cgroupfs`` or ``systemd``.
    :param slow: factor on all limits of time.
    """

    def __init__(self, host: OwnHost, driver: str = "cgroupfs", slow: float = 1.0) -> None:
        self.host, self.driver, self.slow = host, driver, slow
        self._home = host.home
        self._stack = contextlib.ExitStack()
        self._running: dict[str, Process] = {}

    def __enter__(self) -> "RealNode":
        try:
            self._make_network()
            self.cluster = self._start_control_plane()
            self.start_containerd()
            self._import_images()
            self.start_kubelet()
            self.wait("the node to be ready", self._is_ready)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every program; pods end with the host's cgroups."""
        for name in ("kubelet", "containerd"):
            if name in self._running:
                self.stop(name)
        self._stack.close()

    def start_containerd(self) -> None:
        """Start containerd and wait until it answers."""
        values = {"pause": _PAUSE, "plugins": _CNI_PLUGINS, "runc": self._runc()}
        systemd = str(self.driver == "systemd").lower()
        config = self._home / "containerd.toml"
        config.write_text(_CONTAINERD.format(systemd=systemd, **values))
        path = f"{program('runc').parent}:{os.environ['PATH']}"  # of the shim
        command = [str(program("containerd")), f"--config={config}"]
        self._start("containerd", ["env", f"PATH={path}", *command])
        self.wait("containerd", lambda: self.ctr("version"))

    def _runc(self) -> Path:
        found = program("runc")
        if _host_capabilities() & _SYS_RESOURCE:
            return found
        wrapper = self._home / "runc"
        wrapper.write_text(_RUNC.format(runc=found))
        wrapper.chmod(0o755)
        return wrapper

    def start_kubelet(self) -> None:
        """Start kubelet; ``wait`` for what it is to do."""
        config = self._home / "kubelet.json"  # JSON is YAML
        config.write_text(json.dumps(_KUBELET | {"cgroupDriver": self.driver}))
        kubeconfig = f"--kubeconfig={self.admin_kubeconfig}"
        identity = (f"--hostname-override={NODE}", f"--node-ip={_ADDRESS}")
        command = [str(program("kubelet")), f"--config={config}", kubeconfig, *identity]
        self._start("kubelet", command)

    def stop(self, name: str, signum: int = signal.SIGTERM) -> None:
        """End kubelet or containerd."""
        self._running.pop(name).stop(signum, within_s=30 * self.slow)

    def alive(self, name: str) -> bool:
        """Whether kubelet or containerd runs."""
        return name in self._running and self._running[name].popen.poll() is None

    def log(self, name: str) -> str:
        """Return what kubelet or containerd has logged so far."""
        return (self._home / f"{name}.err").read_text(errors="replace")

    def ctr(self, *arguments: str) -> str:
        """Return the output of containerd's client in the namespace of kubelet's containers."""
        options = (f"--address={_SOCKET}", "--namespace=k8s.io")
        return self.host.run(str(program("ctr")), *options, *arguments)

    def add_image(self, archive: Path) -> None:
        """Import an image; pods use it with ``imagePullPolicy: Never``."""
        self.ctr("images", "import", "--local", str(archive))

    def wait(self, what: str, ask: Callable[[], _T], within_s: float = 60.0) -> _T:
        """Return the first true answer of *ask*; refused and failed requests count as none."""
        deadline_s = time.monotonic() + within_s * self.slow
        while True:
            for process in self._running.values():
                process.check()
            last: object
            try:
                last = answer = ask()
                if answer:
                    return answer
            except (OSError, Refused, AssertionError) as error:
                last = error
            assert time.monotonic() < deadline_s, f"no end of waiting for {what}: {last}"
            time.sleep(0.1 * self.slow)

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

    def _is_ready(self) -> bool:
        node = self.cluster.admin.get(f"/api/v1/nodes/{NODE}")
        conditions = node["status"].get("conditions", [])
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def _start(self, name: str, command: Sequence[str]) -> None:
        inside = self.host.inside(command)
        self._running[name] = start(name, inside, self._home, join=self.host.join)

    def _make_network(self) -> None:
        for command in (
            "link add node0 type bridge",
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
        (self._home / "var-lib/kubelet-static").mkdir(exist_ok=True)

    def _start_control_plane(self) -> Cluster:
        home = self._home / "control-plane"
        home.mkdir()
        plane = ControlPlane(home, self.host.in_network, 60.0 * self.slow)
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

    def _import_images(self) -> None:
        pause, busybox = (self._home / f"{name}.tar" for name in ("pause", "busybox"))
        save_files(pause, _PAUSE, ["/pause"], {"pause": program("pause")})
        found = shutil.which("busybox")
        assert found is not None
        links = {f"bin/{name}": "busybox" for name in ("sh", "sleep", "cat", "nproc")}
        save_files(busybox, BUSYBOX, ["/bin/busybox"], {"bin/busybox": Path(found), **links})
        for archive in (pause, busybox):
            self.add_image(archive)


def _host_capabilities() -> int:
    """Return the bounding set of this process: what its children can have at most."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("CapBnd:")[2].split()[0], 16)


def container(name: str, resources: Mapping[str, object], command: str) -> Json:
    """Return a container that executes *command* in busybox's shell."""
    return {
        "name": name,
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", command],
        "resources": dict(resources),
    }
