# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Simulates hosts that lack a kernel feature, by hiding files of the running kernel.

``AgentRun(without=...)`` runs the agent in a mount namespace where a mount hides the file, so that
everything above the system calls is the code that users run.
"""

import importlib.util
from pathlib import Path

from controller.host.facts import CgroupLayout

__all__ = ("BLIND", "btf_without_sched_info", "without")

BTF = Path("/sys/kernel/btf/vmlinux")
# Not imported, because without bytecode its source has warnings, which are errors in tests.
_BCC = importlib.util.find_spec("bcc")
# Hides the compiler, so that an agent starts at once and without probes.
BLIND = "" if _BCC is None else f"mount -t tmpfs tmpfs {Path(str(_BCC.origin)).resolve().parent}"


def btf_without_sched_info(folder: Path) -> Path:
    """Write the running kernel's BTF to *folder*, with task_struct.sched_info renamed."""
    blob = BTF.read_bytes()
    name, other = b"\0sched_info\0", b"\0sched_none\0"
    assert blob.count(name) == 1  # the strings of BTF are unique
    path = folder / "btf"
    path.write_bytes(blob.replace(name, other))
    return path


def without(what: str, folder: Path, layout: CgroupLayout) -> str:
    """Return the shell command that hides *what* (names of features) from a process."""
    commands = {
        "BTF": f"mount -t tmpfs tmpfs {BTF.parent}",
        "sched_info": f"mount --bind {folder / 'btf'} {BTF}",
        "cgroup2": f"umount {layout.unified}",
    }
    return "; ".join(command for name, command in commands.items() if name in what)
