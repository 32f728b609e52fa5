# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the resctrl tests: direct access to the file system, and processes."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
import subprocess

from controller.config.sections.resctrl import ResctrlConfig
from controller.core.model import CgroupId, QosClass, Workload
from controller.host.resctrl import RESCTRL_DIR

GROUP = "sweetpoint-best-effort"
OURS = RESCTRL_DIR / GROUP
CONFIG = ResctrlConfig(
    manage=True, mount=False, group=GROUP, adopted=False, monitor=True, rmid_reserve=4
)


@contextmanager
def mounted() -> Iterator[Path]:
    """Mount resctrl as another program; unmounting removes all groups."""
    subprocess.run(["mount", "-t", "resctrl", "resctrl", RESCTRL_DIR], check=True)
    try:
        yield RESCTRL_DIR
    finally:
        subprocess.run(["umount", RESCTRL_DIR], check=True)


def is_mounted() -> bool:
    """Return whether resctrl is mounted."""
    return (RESCTRL_DIR / "schemata").exists()


def groups() -> dict[str, str]:
    """Return the schemata of all control groups, ours and others, as the kernel shows them."""
    if not is_mounted():
        return {}
    found = [p for p in RESCTRL_DIR.iterdir() if (p / "tasks").is_file()]
    return {p.name: (p / "schemata").read_text() for p in (RESCTRL_DIR, *found)}


def group_of(pid: int) -> str:
    """Return the resctrl control group of a task: ``/``, a name, or an empty text."""
    return Path(f"/proc/{pid}/cpu_resctrl_groups").read_text().split()[0].removeprefix("res:")


def best_effort(cgroup: Path) -> Workload:
    """Return a best-effort workload with that cgroup of the cgroup2 tree."""
    path = "/" + str(cgroup.relative_to("/sys/fs/cgroup"))
    identity = CgroupId("v2", cgroup.stat().st_ino)
    return Workload(cgroup.name, identity, path, QosClass.BE, "", "")


def service(cgroup: Path, resctrl_class: str) -> Workload:
    """Return a service with that cgroup, which has *resctrl_class*."""
    return best_effort(cgroup)._replace(
        qos=QosClass.LS, service=cgroup.name, resctrl_class=resctrl_class
    )


@contextmanager
def sleepers(number: int) -> Iterator[list[int]]:
    """Start idle processes in the cgroup of the test."""
    processes = [subprocess.Popen(["sleep", "1000"]) for _ in range(number)]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def move(pids: Iterable[int], cgroup: Path) -> None:
    """Move processes into a cgroup."""
    for pid in pids:
        (cgroup / "cgroup.procs").write_text(str(pid))
