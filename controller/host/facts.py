# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Facts of this host: cgroup hierarchies, mounts, CPUs, memory, the C library.

Everything here reads only, except ``die_with_parent``, which changes the calling process. Which
features the kernel has is checked in ``controller.doctor``.
"""

from collections.abc import Container, Iterable
import contextlib
from dataclasses import dataclass
from functools import cache
import os
from pathlib import Path
import platform
import re
import signal
from typing import TYPE_CHECKING, Literal, NamedTuple

from controller.core.units import parse_cpu_list

if TYPE_CHECKING:
    import ctypes

__all__ = (
    "CgroupLayout",
    "HostError",
    "Mount",
    "boot_id",
    "core_siblings",
    "cpu_model",
    "die_with_parent",
    "enter_new_network_namespace",
    "find_cgroup_layout",
    "kernel_version",
    "libc",
    "memory_bytes",
    "mounts",
    "online_cpus",
    "possible_cpus",
    "present_cpus",
)

_CPU_DIR = Path("/sys/devices/system/cpu")
_MOUNTINFO = Path("/proc/self/mountinfo")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# x86, POWER, ARM (arch/*/kernel/*: show_cpuinfo).
_MODEL = re.compile(r"^(?:model name|cpu|CPU part)\s*: *(.+)$", re.MULTILINE)
_MAX_MODEL = 128
_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
_CLONE_NEWNET = 0x40000000  # include/uapi/linux/sched.h


class HostError(Exception):
    """The agent cannot work on this host as it is; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupLayout:
    """The cgroup hierarchy that has the cpu controller.

    ``hierarchy`` is its name in ``model.CgroupId``: ``v2``, or ``cpu`` on v1, also where cpu and
    cpuacct are one hierarchy. ``mount`` is its mount point. ``unified`` is the mount point of
    cgroup2: on v2 the same as ``mount``, on a hybrid host that of the tree without controllers,
    otherwise ``None``.
    """

    hierarchy: str
    mount: Path
    version: Literal["v1", "v2"]
    unified: Path | None


class Mount(NamedTuple):
    """A mount: directory in the file system, mount point, type and options of the file system."""

    root: str
    point: Path
    fs_type: str
    options: frozenset[str]


def find_cgroup_layout(mountinfo: str | None = None) -> CgroupLayout:
    """Find the cpu hierarchy in *mountinfo* (default: /proc/self/mountinfo).

    A v1 mount with the cpu controller takes precedence: the kernel gives a controller to one
    hierarchy only, so the cgroup2 tree of such a host cannot have it.

    :raises HostError: no mounted hierarchy has the cpu controller.
    """
    found = mounts(mountinfo, {"cgroup", "cgroup2"})
    unified = _best(m for m in found if m.fs_type == "cgroup2")
    v1 = _best(m for m in found if m.fs_type == "cgroup" and "cpu" in m.options)
    if v1 is not None:
        return CgroupLayout(
            hierarchy="cpu",
            mount=v1.point,
            version="v1",
            unified=unified.point if unified else None,
        )
    if unified is None:
        raise HostError(
            "no cgroup hierarchy with the cpu controller is mounted: run "
            "'mount -t cgroup2 cgroup2 /sys/fs/cgroup', or share the host's /sys/fs/cgroup "
            "with this container"
        )
    controllers = unified.point / "cgroup.controllers"
    try:
        available = controllers.read_text(encoding="utf-8").split()
    except OSError as error:
        raise HostError(f"cannot read {controllers}: {error.strerror}") from None
    if "cpu" not in available:
        raise HostError(
            f"{controllers} does not list cpu: enable it with 'echo +cpu' into the "
            "cgroup.subtree_control of the parent cgroup, or boot without cgroup_disable=cpu"
        )
    return CgroupLayout(hierarchy="v2", mount=unified.point, version="v2", unified=unified.point)


def find_controller(
    name: str, unified: Path | None, mountinfo: str | None = None
) -> tuple[Literal["v1", "v2"], Path | None]:
    """Return the version and the mount of the hierarchy with the controller of the v1 *name*.

    *unified* is the mount of cgroup2. If a v1 mount has the controller, that is the one: the kernel
    gives a controller to one hierarchy only. A mount of the whole tree is preferred to one of a
    part of it, as a container has.
    """
    found = [each for each in mounts(mountinfo, {"cgroup"}) if name in each.options]
    if found:
        return "v1", min(found, key=lambda each: each.root != "/").point
    return "v2", unified


def mounts(mountinfo: str | None, fs_types: Container[str]) -> list[Mount]:
    """Return the visible mounts of *fs_types* in *mountinfo* (default: /proc/self/mountinfo)."""
    if mountinfo is None:
        mountinfo = os.fsdecode(_MOUNTINFO.read_bytes())
    # proc(5): id parent dev ROOT POINT options [optional fields] - TYPE source SUPER_OPTIONS
    found: dict[Path, Mount] = {}
    # Any user chooses a mount point (fusermount(1)): not always UTF-8, and with any white space but
    # what the kernel escapes.
    for line in mountinfo.split("\n"):
        head, separator, tail = line.partition(" - ")
        left, right = head.split(" "), tail.split(" ")
        if not separator or len(left) < 5 or not right:
            continue
        point = Path(_unescape(left[4]))
        # A later mount on the same directory hides the earlier one.
        found.pop(point, None)
        if right[0] in fs_types:
            options = frozenset(right[2].split(",")) if len(right) > 2 else frozenset()
            found[point] = Mount(left[3], point, right[0], options)
    return list(found.values())


def boot_id() -> str:
    """Return the random identifier of this boot of the kernel."""
    return _BOOT_ID.read_text(encoding="ascii").strip()


@cache
def libc() -> "ctypes.CDLL":
    """Return the C library; ``ctypes.get_errno()`` gives the error of the last call through it.

    Arguments wider than an int have to be wrapped in a ctypes type: no prototypes are set.
    """
    import ctypes  # here, because the guardian is to stay small and needs no C library

    return ctypes.CDLL(None, use_errno=True)


def die_with_parent(signal_number: int = signal.SIGKILL) -> None:
    """Have the kernel send *signal_number* to this process when its parent dies.

    See PR_SET_PDEATHSIG in prctl(2): the parent is the thread that forked; the setting is lost
    in a fork and kept by execve. The death of a parent before this call has no effect: where
    that matters, compare ``os.getppid()`` with the expected parent after the call.
    """
    import ctypes  # see libc

    libc().prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal_number))


def enter_new_network_namespace() -> None:
    """Put the calling thread, and what it starts from now on, into a network namespace of its own.

    :raises OSError: it may not (CAP_SYS_ADMIN), or the kernel has no network namespaces.
    """
    import ctypes  # see libc

    if libc().unshare(_CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def kernel_version() -> tuple[int, int]:
    """Return the first two numbers of the kernel's version."""
    major, minor = re.findall(r"\d+", platform.release())[:2]
    return int(major), int(minor)


def memory_bytes() -> int:
    """Return the size of this host's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the first CPU's model; empty where the kernel does not tell it."""
    with contextlib.suppress(OSError):
        found = _MODEL.search(cpuinfo.read_text(encoding="utf-8", errors="replace"))
        return found[1][:_MAX_MODEL] if found else ""
    return ""


def online_cpus() -> tuple[int, ...]:
    """Return the numbers of the CPUs that are online."""
    return parse_cpu_list((_CPU_DIR / "online").read_text(encoding="utf-8"))


def present_cpus() -> tuple[int, ...]:
    """Return the numbers of the CPUs that this host has, those that are offline included."""
    return parse_cpu_list((_CPU_DIR / "present").read_text(encoding="utf-8"))


def possible_cpus() -> tuple[int, ...]:
    """Return the numbers of all CPUs that can ever be online; they determine per-CPU maps."""
    return parse_cpu_list((_CPU_DIR / "possible").read_text(encoding="utf-8"))


def core_siblings(cpu_dir: Path = _CPU_DIR) -> tuple[tuple[int, ...], ...]:
    """Return the groups of online CPUs that are threads of one core; empty without SMT."""
    found = set()
    for cpu in parse_cpu_list((cpu_dir / "online").read_text(encoding="utf-8")):
        path = cpu_dir / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        try:
            found.add(parse_cpu_list(path.read_text(encoding="utf-8")))
        except OSError:  # the CPU went offline meanwhile
            continue
    return tuple(sorted(group for group in found if len(group) > 1))


def _best(mounts: Iterable[Mount]) -> Mount | None:
    # A mount of the whole tree is preferred to one of a part of it, then the shortest path.
    ranked = sorted(mounts, key=lambda m: (m.root != "/", len(m.point.parts)))
    return ranked[0] if ranked else None


def _unescape(text: str) -> str:
    # proc_pid_mountinfo(5): space, tab, newline and backslash are written as octal escapes.
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
