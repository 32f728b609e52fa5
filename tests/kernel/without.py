# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Hosts that lack something this one has: what the kernel shows is covered up.

For a process of its own (``AgentRun(without=...)``) that is done by a mount in a mount namespace,
so that everything above the system calls is what users run.
"""

from pathlib import Path

from controller.host.facts import CgroupLayout

__all__ = ("btf_without_sched_info", "without")

BTF = Path("/sys/kernel/btf/vmlinux")


def btf_without_sched_info(folder: Path) -> Path:
    """Write the running kernel's BTF to *folder*, task_struct's member sched_info renamed."""
    blob = BTF.read_bytes()
    name, other = b"\0sched_info\0", b"\0sched_none\0"
    assert blob.count(name) == 1  # all strings of BTF are different
    path = folder / "btf"
    path.write_bytes(blob.replace(name, other))
    return path


def without(what: str, folder: Path, layout: CgroupLayout) -> str:
    """Return the shell command that takes *what* (words of the test) from the host."""
    commands = {
        "BTF": f"mount -t tmpfs tmpfs {BTF.parent}",
        "sched_info": f"mount --bind {folder / 'btf'} {BTF}",
        "cgroup2": f"umount {layout.unified}",
    }
    return "; ".join(command for name, command in commands.items() if name in what)
