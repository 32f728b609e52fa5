# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The programs of a node, kubelet and containerd, in a place of their own."""

from collections.abc import Callable, Mapping
import json
import os
from pathlib import Path
import shutil
import signal
import socket
from typing import TypeVar

from controller.demo.cgroups import DemoError
from tests.kube.asking import answer
from tests.kube.client import Json
from tests.kube.control_plane import program
from tests.kube.images import save_files
from tests.kube.own_host import OwnHost, Running
from tests.support.waiting import DEADLINE_S

__all__ = ("BUSYBOX", "NODE", "NodePrograms", "container")

NODE = "real"
BUSYBOX = "example.org/busybox:local"
_PAUSE = "example.org/pause:local"
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
    case "$before" in
    --bundle) file=$word/config.json ;;
    --process) file=$word ;;  # of an exec
    *) file= ;;
    esac
    [ -z "$file" ] || sed -i 's/"CAP_SYS_RESOURCE",//g; s/,"CAP_SYS_RESOURCE"//g' "$file"
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


class NodePrograms:
    """kubelet and containerd in *host*; ``log`` returns what they logged.

    :param host: the place of all programs.
    :param driver: kubelet's cgroup driver, ``cgroupfs`` or ``systemd``.
    """

    def __init__(self, host: OwnHost, driver: str = "cgroupfs") -> None:
        self.host, self.driver = host, driver
        self.kubelet_arguments: tuple[str, ...] = ()
        self.kubelet_options: Json = {}
        self._home = host.home
        self._running: dict[str, Running] = {}

    def close(self) -> None:
        """End every program; pods end with the host's cgroups."""
        for name in ("kubelet", "containerd"):
            if name in self._running:
                self.stop(name)

    def start_containerd(self) -> None:
        """Start containerd and wait until it answers."""
        values = {"pause": _PAUSE, "plugins": _CNI_PLUGINS, "runc": self._runc()}
        systemd = str(self.driver == "systemd").lower()
        config = self._home / "containerd.toml"
        config.write_text(_CONTAINERD.format(systemd=systemd, **values))
        path = f"{program('runc').parent}:{os.environ['PATH']}"  # of the shim
        command = [str(program("containerd")), f"--config={config}"]
        self._running["containerd"] = self.host.start(
            "containerd", ["env", f"PATH={path}", *command]
        )
        self.wait("containerd", self._listens)

    def _listens(self) -> bool:
        # Its client would do, but takes seconds to start in an emulator.
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.host.file(_SOCKET)))
        return True

    def _runc(self) -> Path:
        found = program("runc")
        if _host_capabilities() & _SYS_RESOURCE:
            return found
        wrapper = self._home / "runc"
        wrapper.write_text(_RUNC.format(runc=found))
        wrapper.chmod(0o755)
        return wrapper

    def start_kubelet(self) -> None:
        """Start kubelet and wait until it synchronizes pods.

        ``kubelet_arguments`` and ``kubelet_options`` add to its command line and to its file. As
        its unit does, this starts kubelet again if that ends, which it does if containerd on a busy
        machine does not answer within seconds.
        """
        (self._home / "var-lib/kubelet-static").mkdir(exist_ok=True)
        config = self._home / "kubelet.json"  # JSON is YAML
        options = {"cgroupDriver": self.driver, **self.kubelet_options}
        config.write_text(json.dumps(_KUBELET | options))
        command = [str(program("kubelet")), f"--config={config}", f"--hostname-override={NODE}"]
        start = len(self.log("kubelet"))

        def synchronizes() -> bool:
            if not self.alive("kubelet"):
                every = [*command, *self.kubelet_arguments]
                self._running["kubelet"] = self.host.start("kubelet", every)
            return "Starting kubelet main sync loop" in self.log("kubelet")[start:]

        answer("kubelet", synchronizes, [self._running["containerd"]])

    def stop(self, name: str, signum: int = signal.SIGTERM) -> None:
        """End kubelet or containerd."""
        self._running.pop(name).stop(signum, within_s=DEADLINE_S)

    def alive(self, name: str) -> bool:
        """Whether kubelet or containerd runs."""
        try:
            self._running[name].check()
        except (KeyError, DemoError):
            return False
        return True

    def log(self, name: str) -> str:
        """Return what kubelet or containerd has logged so far."""
        file = self._home / f"{name}.err"
        return file.read_text(errors="replace") if file.exists() else ""

    def ctr(self, *arguments: str) -> str:
        """Return the output of containerd's client in the namespace of kubelet's containers."""
        options = (f"--address={_SOCKET}", "--namespace=k8s.io")
        return self.host.run(str(program("ctr")), *options, *arguments)

    def add_image(self, archive: Path) -> None:
        """Import an image; pods use it with ``imagePullPolicy: Never``."""
        self.ctr("images", "import", "--local", str(archive))

    def import_images(self) -> None:
        """Import the images of pauses and of busybox."""
        pause, busybox = (self._home / f"{name}.tar" for name in ("pause", "busybox"))
        save_files(pause, _PAUSE, ["/pause"], {"pause": program("pause")})
        found = shutil.which("busybox")
        assert found is not None
        links = {f"bin/{name}": "busybox" for name in ("sh", "sleep", "cat", "nproc")}
        save_files(busybox, BUSYBOX, ["/bin/busybox"], {"bin/busybox": Path(found), **links})
        for archive in (pause, busybox):
            self.add_image(archive)

    def wait(self, what: str, ask: Callable[[], _T | None]) -> _T:
        """Return the first true answer of *ask*; see ``answer``."""
        return answer(what, ask, self._running.values())


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
