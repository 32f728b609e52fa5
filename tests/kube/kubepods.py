# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Real cgroups in the layout that kubelet and a container runtime create."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from controller.host.facts import CgroupLayout
from tests.support.cgroups import remove_cgroup

__all__ = ("DRIVERS", "Driver", "Kubepods", "Runtime")

Driver = Literal["cgroupfs", "systemd"]
Runtime = Literal["containerd", "crio"]
DRIVERS: tuple[Driver, ...] = ("cgroupfs", "systemd")

_SCOPES: dict[Runtime, str] = {"containerd": "cri-containerd", "crio": "crio"}


@dataclass(frozen=True)
class Kubepods:
    """The ``kubepods`` of one node, below the test's own cgroup *base*."""

    base: Path
    layout: CgroupLayout
    driver: Driver = "cgroupfs"
    runtime: Runtime = "containerd"

    @property
    def root(self) -> Path:
        """The directory of ``kubepods``."""
        return self.base / ("kubepods.slice" if self.driver == "systemd" else "kubepods")

    @property
    def config_root(self) -> str:
        """``root`` relative to the mount of the cpu controller, as in a configuration."""
        return f"/{self.root.relative_to(self.layout.mount)}"

    def make_qos_levels(self) -> None:
        """Make the cgroups that kubelet makes at its start."""
        self._make(self.root)
        for name in ("besteffort", "burstable"):
            self._make(self.qos_level(name))
        # The minimum weight (pkg/kubelet/cm/qos_container_manager_linux.go).
        v2 = self.layout.version == "v2"
        file, least = ("cpu.weight", 1) if v2 else ("cpu.shares", 2)
        (self.qos_level("besteffort") / file).write_text(str(least))

    def qos_level(self, name: str) -> Path:
        """Return the parent cgroup of the pods of a QoS class, by its name in lower case."""
        if name == "guaranteed":
            return self.root
        return self.root / (f"kubepods-{name}.slice" if self.driver == "systemd" else name)

    def pod(self, uid: str, qos: str) -> Path:
        """Return the path of a pod's cgroup."""
        parent = self.qos_level(qos.lower())
        if self.driver == "cgroupfs":
            return parent / f"pod{uid}"
        return parent / f"{parent.name.removesuffix('.slice')}-pod{uid.replace('-', '_')}.slice"

    def make_container(self, pod: Path, container: str) -> Path:
        """Make the cgroup of a container, and of its pod if that does not exist."""
        if not pod.exists():
            self._make(pod)
        name = container
        if self.driver == "systemd":
            name = f"{_SCOPES[self.runtime]}-{container}.scope"
        path = pod / name
        path.mkdir()
        return path

    def remove(self, pod: Path) -> None:
        """Kill the processes of a pod and remove its cgroups."""
        remove_cgroup(pod)

    def _make(self, path: Path) -> None:
        path.mkdir()
        if self.layout.version == "v2":
            # Enables all controllers that the parent offers, as kubelet does.
            found = (path / "cgroup.controllers").read_text().split()
            control = " ".join(f"+{controller}" for controller in found)
            (path / "cgroup.subtree_control").write_text(control)
