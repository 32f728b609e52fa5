# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A kubelet without an API server: static pods, containerd and runc, in a place of their own.

Or the cgroups of such a node alone, as units of systemd. The agent beside them has no probes,
because compiling them takes 1.5 minutes in the test kernel: sched-idle is on all the time, and the
configuration says whether the safe state squeezes best-effort work.
"""

from collections.abc import Iterator
import contextlib
from functools import partial
import json
import os
from pathlib import Path
import re
import signal
import subprocess
from typing import Literal

from controller.demo.programs import free_port
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun
from tests.kernel.knobs import dump
from tests.kernel.without import BLIND
from tests.kube.client import Json
from tests.kube.kubepods import Driver, Kubepods
from tests.kube.node_programs import NodePrograms, container
from tests.kube.own_host import OwnHost
from tests.kube.systemd_host import SystemdHost
from tests.support.kube.pod_server import NODE, PodServer
from tests.support.kube.pod_server import pod as raw_pod
from tests.support.waiting import eventually

__all__ = (
    "Kind",
    "StandaloneNode",
    "enforcing",
    "in_boot",
    "new_boot_id",
    "standalone_home",
    "standalone_node",
)

# A kubelet with this cgroup driver, or the units that it would make systemd start.
Kind = Literal["cgroupfs", "systemd", "units"]

# kubelet has updated its own cgroups then, and has read the manifests.
_STARTED = (re.compile(r'cpu_manager.*"Starting"'), re.compile(r'"SyncLoop ADD" source="file"'))
# What kubelet logs if it cannot write to a cgroup.
_CGROUP_ERROR = re.compile(
    r"^[EF]\d.*(?:QoS cgroup|QOS|ContainerManager|cpu\.\w+|invalid argument|runc).*", re.M
)
_PODS = {"web": "Burstable", "batch": "BestEffort"}
# Those that kubelet gives the pods, and their levels with them; on cgroup v1 the service's shares.
_WEIGHTS = {"web": 4, "batch": 1}
_SHARES = 102
_SLICE = """\
[Unit]
DefaultDependencies=no
[Slice]
CPUWeight={weight}
"""
_CONTAINER = """\
[Unit]
DefaultDependencies=no
[Service]
Type=exec
Slice={pod}
CPUWeight={weight}
ExecStart=/bin/sleep infinity
"""
# Those of the pods; busybox executes its sleep in the shell or as a program.
_PROCESSES = {"pause", "sh", "sleep"}
_WHOLE_CPU = {"cpu": "1", "memory": "64Mi"}
_RESOURCES = {
    "Guaranteed": {"requests": _WHOLE_CPU, "limits": _WHOLE_CPU},
    "Burstable": {"requests": {"cpu": "100m"}},
    "BestEffort": {},
}
# No probe measures this, so it is in the safe state: best-effort work is at its floor, or is free.
_PROFILE = """\
name: default
indicators:
  runq_p99: {sweet_point: 1ms}
"""


class StandaloneNode(NodePrograms):
    """A node with a Burstable service and a BestEffort pod; ``cgroups`` are theirs by name.

    The agent that gets ``config`` knows the pods from *server*, as it would from an API server.

    """

    def __init__(
        self, host: OwnHost, driver: Driver, layout: CgroupLayout, server: PodServer
    ) -> None:
        super().__init__(host, driver)
        self.kubepods = Kubepods(host.cgroup("cpu"), layout, driver)
        self._server = server
        self.cgroups: dict[str, Path] = {}
        for name, qos in _PODS.items():
            self._declare(name, qos)
        self.port, self.state_dir = free_port(), host.home / "state"
        self.config = host.home / "config.yaml"
        (host.home / "default.yaml").write_text(_PROFILE)
        self.squeeze(True)

    def _declare(self, name: str, qos: str) -> Json:
        raw, main = raw_pod(name), container("main", _RESOURCES[qos], "sleep 1000000")
        raw["status"]["qosClass"] = qos
        raw["spec"] |= {"containers": [main]}
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": raw["metadata"],
            "spec": {"hostNetwork": True, "terminationGracePeriodSeconds": 1, "containers": [main]},
        }
        self._manifest(name).parent.mkdir(exist_ok=True)
        self._manifest(name).write_text(json.dumps(manifest))
        self._server.pods.append(raw)
        self.cgroups[name] = self.kubepods.pod(raw["metadata"]["uid"], qos)
        return raw

    def _manifest(self, name: str) -> Path:
        return self.host.home / f"var-lib/kubelet-static/{name}.json"

    def start_guaranteed(self, name: str) -> None:
        """Start a Guaranteed pod with one whole CPU; kubelet runs."""
        self._server.send_event("ADDED", self._declare(name, "Guaranteed"))
        self.wait("the pod", self._run)

    def end(self, name: str) -> None:
        """End a pod of ``start_guaranteed``; kubelet runs."""
        self._manifest(name).unlink()
        (raw,) = (each for each in self._server.pods if each["metadata"]["name"] == name)
        self._server.pods.remove(raw)
        self._server.send_event("DELETED", raw)
        cgroup = self.cgroups.pop(name)
        self.wait("the end of the pod", lambda: not cgroup.exists())

    def squeeze(self, on: bool) -> None:
        """Write the configuration in which best-effort work is at its floor, or free."""
        self.config.write_text(
            f"mode: enforce\nhttp: 127.0.0.1:{self.port}\nstate_dir: {self.state_dir}\n"
            f"data_dir: {self.host.home}/data\nprofiles: [default.yaml]\ntick: 1s\n"
            f"safe_state: {'floor' if on else 'static'}\n"
            f"kubernetes:\n  node: {NODE}\n  kubeconfig: {self._server.kubeconfig}\n"
            f"  cgroup_roots: [{self.kubepods.config_root}]\n"
        )

    def protected(self) -> bool:
        """Whether the BestEffort pod is idle."""
        return (self.cgroups["batch"] / "cpu.idle").read_text() == "1\n"

    def squeezed(self) -> bool:
        """Whether the BestEffort pod has a quota."""
        files = (self.cgroups["batch"] / name for name in ("cpu.max", "cpu.cfs_quota_us"))
        (quota,) = (file.read_text() for file in files if file.exists())
        return not quota.startswith(("max", "-1"))

    def in_force(self) -> bool:
        """Whether both values of the agent are in force."""
        return self.protected() and self.squeezed()

    def knobs(self) -> dict[str, str]:
        """Return all knobs of the pods and their levels."""
        return dump(self.kubepods.root)

    def wait_for_weight(self) -> None:
        """Wait until the level of Burstable pods has the weight of their requests."""
        level = self.kubepods.qos_level("burstable")

        def is_right() -> bool:
            files = ((level / "cpu.weight", _WEIGHTS["web"]), (level / "cpu.shares", _SHARES))
            return any(file.exists() and int(file.read_text()) == want for file, want in files)

        try:
            eventually("kubelet's weight", is_right)
        except AssertionError as error:
            error.add_note(f"errors of kubelet: {self.cgroup_errors()}")
            raise

    def records(self) -> list[Path]:
        """Return the files of the agent's journal."""
        return list((self.state_dir / "journal").glob("*.json"))

    def processes(self) -> dict[str, list[int]]:
        """Return the processes of the pods: the pause and the container of each."""
        return {
            name: sorted(
                int(pid)
                for file in cgroup.rglob("cgroup.procs")
                for pid in file.read_text().split()
            )
            for name, cgroup in self.cgroups.items()
        }

    def start(self) -> None:
        """Start the programs and the pods."""
        self.start_containerd()
        self.import_images()
        self.start_pods()

    def start_pods(self) -> None:
        """Start kubelet and wait until it has started its pods, or has found them."""
        offset = len(self.log("kubelet")) if (self.host.home / "kubelet.err").exists() else 0
        self.start_kubelet()
        for words in _STARTED:
            self.wait("kubelet", partial(self._said, words, offset))
        self.wait("the pods", self._run)

    def _said(self, words: re.Pattern[str], offset: int) -> bool:
        return bool(words.search(self.log("kubelet"), offset))

    def _run(self) -> bool:
        found = self.processes().values()
        names = [Path(f"/proc/{pid}/comm").read_text() for each in found for pid in each]
        # runc becomes the container's first process, when all knobs of its cgroup are written.
        return all(len(each) == 2 for each in found) and set(map(str.strip, names)) <= _PROCESSES

    def cgroup_errors(self) -> list[str]:
        """Return the lines of kubelet's log that say that it could not write to a cgroup."""
        return _CGROUP_ERROR.findall(self.log("kubelet"))


class _Units(StandaloneNode):
    """The same pods without kubelet and containerd: units of systemd."""

    def start(self) -> None:
        assert isinstance(self.host, SystemdHost)
        for name, cgroup in self.cgroups.items():
            weight = _WEIGHTS[name]
            for each in (cgroup.parent, cgroup):
                self.host.start_unit(each.name, _SLICE.format(weight=weight))
            container = _CONTAINER.format(pod=cgroup.name, weight=weight)
            self.host.start_unit(f"{name}.service", container)


@contextlib.contextmanager
def standalone_home(home: Path) -> Iterator[Path]:
    """Make *home*, in the test kernel, a place for the files of a node, which outlive the node."""
    # An overlay, such as /tmp of the guest, cannot be the upper layer of another one.
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", home], check=True)
    # What systemd logs is not to be dropped.
    Path("/proc/sys/kernel/printk_devkmsg").write_text("on\n")
    cpus = os.sched_getaffinity(0)
    # Spinning threads of the Go programs wait there for a CPU that the emulator does not run.
    os.sched_setaffinity(0, {min(cpus)})
    try:
        yield home
    finally:
        os.sched_setaffinity(0, cpus)
        subprocess.run(["umount", "-l", home], check=True)


@contextlib.contextmanager
def standalone_node(
    home: Path, kind: Kind, layout: CgroupLayout, server: PodServer
) -> Iterator[StandaloneNode]:
    """Start a node whose files are in *home*; its pods are those of *server*."""
    driver: Driver = "cgroupfs" if kind == "cgroupfs" else "systemd"
    place = OwnHost if kind == "cgroupfs" else SystemdHost
    server.pods.clear()
    with place(home, f"sweetpoint-test-{os.getpid()}-standalone") as host:
        for name in ("var-lib", "var-log"):
            (home / name).mkdir(exist_ok=True)
        make = _Units if kind == "units" else StandaloneNode
        node = make(host, driver, layout, server)
        try:
            node.start()
            yield node
        finally:
            node.close()


@contextlib.contextmanager
def enforcing(node: StandaloneNode, without: str = BLIND) -> Iterator[AgentRun]:
    """Run the agent; its values are in force when the context begins."""
    # The emulator is too slow for the guardian, which expects a sign of life every ten seconds.
    with AgentRun(node, "--no-guardian", without=without) as agent:
        try:
            eventually("idle and a quota", lambda: node.in_force() or agent.has_ended())
            assert node.in_force()
        except AssertionError as error:
            error.add_note(f"the agent's state: {agent.get('/statusz')}")
            if not agent.has_ended():
                agent.stop(signal.SIGKILL)
            raise
        yield agent


def new_boot_id(home: Path) -> Path:
    """Return the file with the id of another boot."""
    path = home / "boot_id"
    path.write_text("11111111-1111-4111-8111-111111111111\n")
    return path


def in_boot(boot_id: Path) -> str:
    """Return the command after which the id in the file *boot_id* is that of the present boot."""
    return f"mount --bind {boot_id} /proc/sys/kernel/random/boot_id"
