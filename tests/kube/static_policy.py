# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""kubelet's static CPU manager on a standalone node, in the test kernel."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
import subprocess

from controller.core.units import parse_cpu_list
from controller.host.exclusive_cpus import KUBELET_STATE, read_state
from tests.kube.standalone import StandaloneNode

__all__ = ("StaticPolicy", "static_policy")


class StaticPolicy:
    """What kubelet gave away, and the CPUs of best-effort work, on *node*."""

    def __init__(self, node: StandaloneNode) -> None:
        self._node = node
        self._level = node.kubepods.qos_level("besteffort")
        self.every = self.usable()

    def exclusive(self) -> frozenset[int]:
        """Return the CPUs that kubelet gave to one pod alone."""
        return read_state(KUBELET_STATE)

    def usable(self) -> frozenset[int]:
        """Return the CPUs on which best-effort pods may run."""
        return _effective(self._level)

    def isolated(self) -> bool:
        """Whether some CPU is exclusive, and best-effort pods have exactly the others."""
        exclusive = self.exclusive()
        return bool(exclusive) and self.usable() == self.every - exclusive

    def sets(self) -> dict[str, frozenset[int]]:
        """Return the sets in the files of the levels and pods; an empty file has all CPUs.

        Those of containers and of Guaranteed pods are kubelet's.
        """
        pods = [self._node.cgroups[name] for name in ("web", "batch")]
        cgroups = [self._node.kubepods.root, *(each.parent for each in pods), *pods]
        texts = {each.name: (each / "cpuset.cpus").read_text() for each in cgroups}
        return {name: frozenset(parse_cpu_list(text)) or self.every for name, text in texts.items()}

    def container_cpus(self, name: str) -> frozenset[int]:
        """Return the CPUs on which the container of a pod may run."""
        pids = self._node.processes()[name]
        (pid,) = (each for each in pids if Path(f"/proc/{each}/comm").read_text() != "pause\n")
        cgroup = Path(f"/proc/{pid}/cgroup").read_text().partition("::")[2].strip()
        return _effective(Path("/sys/fs/cgroup", cgroup.lstrip("/")))


def _effective(cgroup: Path) -> frozenset[int]:
    return frozenset(parse_cpu_list((cgroup / "cpuset.cpus.effective").read_text()))


@contextmanager
def static_policy(node: StandaloneNode) -> Iterator[StaticPolicy]:
    """Start kubelet again with the static policy, and show agents its file.

    kubelet does not run after the context.
    """
    state = node.host.home / "var-lib/kubelet" / KUBELET_STATE.name

    def restart(options: dict[str, object]) -> None:
        node.stop("kubelet")
        state.unlink(missing_ok=True)  # kubelet refuses that of another policy
        node.kubelet_options = options

    restart({"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"})
    # The agent looks for kubelet's file in the root directory of process 1, here of the guest's.
    subprocess.run(["mount", "--bind", node.host.home / "var-lib", "/var/lib"], check=True)
    try:
        node.start_pods()
        yield StaticPolicy(node)
    finally:
        subprocess.run(["umount", "/var/lib"], check=True)
        restart({})
