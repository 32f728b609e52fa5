# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Facts about the requirements of the agent: rights, cgroups and CPU knobs, BTF, BPF and bcc."""

from collections.abc import Iterable
import contextlib
import ctypes
import importlib.util
import os
from pathlib import Path
import platform
import re
import resource
import struct

from controller.core.names import Knob
from controller.doctor.fact import Fact, purpose, read_text, try_fd_syscall
from controller.host.facts import (
    CgroupLayout,
    HostError,
    find_cgroup_layout,
    kernel_version,
    mounts,
    online_cpus,
    possible_cpus,
)
from controller.host.probe_support import find_lockdown
from controller.probes.bpf.btf import Btf, BtfError

__all__ = ("find_required",)

# include/uapi/linux/capability.h, in the order of the bits.
_CAPABILITY_NAMES = """
chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable
net_bind_service net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio
sys_chroot sys_ptrace sys_pacct sys_admin sys_boot sys_nice sys_resource sys_time
sys_tty_config mknod lease audit_write audit_control setfcap mac_override mac_admin syslog
wake_alarm block_suspend audit_read perfmon bpf checkpoint_restore
"""
_CAPABILITIES = _CAPABILITY_NAMES.split()
# bpf and perfmon to load and attach probes, net_admin to attach those of the network to cgroups,
# kill for the guardian. The files of knobs belong to root.
_NEEDED = ("bpf", "kill", "net_admin", "perfmon")
# include/uapi/linux/bpf.h: map types, and the flag of arrays that can be mapped into memory.
_ARRAY, _RING_BUFFER, _MMAPABLE = 2, 27, 1 << 10


def find_required() -> tuple[Fact, ...]:
    """Find all facts about requirements."""
    try:
        layout: CgroupLayout | None = find_cgroup_layout()
        reason = ""
    except (HostError, OSError) as error:
        layout, reason = None, str(error)
    return (
        _kernel(),
        _root(),
        _capabilities(),
        _cgroup(layout, reason),
        *_cpu_knobs(layout),
        _btf(),
        _lockdown(),
        _sched_info(),
        _bpf(),
        _bcc(),
        _memlock(),
        _state_dir(),
    )


def _kernel() -> Fact:
    online, possible = len(online_cpus()), len(possible_cpus())
    return Fact(
        name="kernel",
        have=True,
        detail=f"Linux {platform.release()} {platform.machine()}, {online} of {possible} CPUs",
        needed_for="everything; Linux 5.8 is the oldest with all that the probes need (see BPF)",
        modes=("observe", "enforce"),
    )


def _root() -> Fact:
    uid = os.geteuid()
    return Fact(
        name="root",
        have=uid == 0,
        detail=f"effective user {uid}",
        needed_for="probes and knobs",
        how="run with sudo",
        modes=("observe", "enforce"),
    )


def _capabilities() -> Fact:
    status = read_text("/proc/self/status")
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    bits = int(match[1], 16) if match else 0
    missing = [name for name in _NEEDED if not bits >> _CAPABILITIES.index(name) & 1]
    absent = [name for i, name in enumerate(_CAPABILITIES) if not bits >> i & 1]
    detail = "all" if not absent else "all but " + ", ".join(absent)
    return Fact(
        name="capabilities",
        have=not missing,
        detail="none" if not bits else detail,
        needed_for=f"probes and knobs ({', '.join(_NEEDED)})",
        how=f"give the process CAP_{', CAP_'.join(missing).upper()}",
        modes=("observe", "enforce"),
    )


def _cgroup(layout: CgroupLayout | None, reason: str) -> Fact:
    if layout is None:
        return Fact(
            name="cgroup cpu controller",
            have=False,
            detail="not found",
            needed_for="finding and steering workloads",
            how=reason,
            modes=("observe", "enforce"),
        )
    read_only = bool(os.statvfs(layout.mount).f_flag & os.ST_RDONLY)
    kind = "hybrid" if layout.version == "v1" and layout.unified else layout.version
    tree = f", cgroup2 tree at {layout.unified}" if kind == "hybrid" else ""
    return Fact(
        name="cgroup cpu controller",
        have=not read_only,
        detail=f"{kind} at {layout.mount}{tree}{', mounted read-only' if read_only else ''}",
        needed_for="finding and steering workloads",
        how=f"mount -o remount,rw {layout.mount}",
        modes=("enforce",),
    )


def _cpu_knobs(layout: CgroupLayout | None) -> Iterable[Fact]:
    v1 = layout is not None and layout.version == "v1"
    knobs = (
        (
            "cpu quota",
            "cpu.cfs_quota_us" if v1 else "cpu.max",
            "CONFIG_CFS_BANDWIDTH",
            ("enforce",),
        ),
        ("cpu quota burst", "cpu.cfs_burst_us" if v1 else "cpu.max.burst", "Linux 5.14", ()),
        ("sched-idle", "cpu.idle", "Linux 5.15", ()),
    )
    needs = (purpose(Knob.CPU_QUOTA), "keeping an existing burst", purpose(Knob.SCHED_IDLE))
    for (name, file, source, modes), needed_for in zip(knobs, needs, strict=True):
        have = None if layout is None else _has_cgroup_file(layout.mount, file)
        detail = {True: file, False: f"no {file}", None: "no cgroup to check"}[have]
        if have and layout is not None and file == "cpu.idle":
            detail += _idle_level(layout.mount)
        yield Fact(
            name=name,
            have=have,
            detail=detail,
            needed_for=needed_for,
            how=f"needs {source}; on cgroup v2 also 'cpu' in cgroup.subtree_control",
            modes=modes,
        )


def _idle_level(mount: Path) -> str:
    """Describe where sched-idle takes effect, above all for a kubelet's BestEffort pods.

    With a cgroup for all BestEffort pods, its weight, which kubelet sets, places them behind all
    other pods. Without it they are siblings of services.
    """
    for pods, best_effort in (
        ("kubepods", "besteffort"),
        ("kubepods.slice", "kubepods-besteffort.slice"),
    ):
        if (mount / pods / best_effort).is_dir():
            return f"; pods: set on each, /{pods}/{best_effort} has kubelet's lowest weight"
        if (mount / pods).is_dir():
            return f"; pods: partial, no {best_effort} in /{pods} (kubelet's cgroupsPerQOS is off)"
    return "; it orders sibling cgroups: put best-effort work into a cgroup beside the services"


def _has_cgroup_file(mount: Path, file: str) -> bool | None:
    """Check the root and, because v2 has no knobs there, its child cgroups."""
    if (mount / file).exists():
        return True
    children = [child for child in mount.iterdir() if child.is_dir()]
    return any((child / file).exists() for child in children) if children else None


def _btf() -> Fact:
    try:
        Btf()
    except BtfError as error:
        have, detail = False, str(error)
    else:
        have, detail = True, "/sys/kernel/btf/vmlinux"
    return Fact(
        name="BTF",
        have=have,
        detail=detail,
        needed_for="the sched probe: finding the kernel's struct members without its headers",
        how="a kernel with CONFIG_DEBUG_INFO_BTF",
        modes=("enforce",),
    )


def _sched_info() -> Fact:
    have: bool | None = None
    detail = "unknown without BTF"
    with contextlib.suppress(BtfError):
        btf = Btf()
        try:
            btf.offset("task_struct", "sched_info.last_queued")
        except BtfError as error:
            have, detail = False, str(error)
        else:
            have, detail = True, "task_struct.sched_info.last_queued"
    return Fact(
        name="sched_info",
        have=have,
        detail=detail,
        needed_for="run-queue latency from one hook (otherwise from wakeup stamps, at more cost)",
        how="a kernel with CONFIG_SCHED_INFO (CONFIG_SCHEDSTATS or CONFIG_TASK_DELAY_ACCT)",
    )


def _lockdown() -> Fact:
    level = find_lockdown()
    return Fact(
        name="kernel lockdown",
        have=level != "confidentiality",
        detail=level or "off, or not visible here",
        needed_for="the sched probe: programs read kernel memory, which 'confidentiality' forbids",
        how="boot with lockdown=integrity or none; without it an agent on this host measures and "
        "changes nothing",
        modes=("enforce",),
    )


def _bpf() -> Fact:
    # Tried rather than derived from the version, because distributions port features back. The
    # maps are gone when their descriptors are closed.
    failed = ""
    for what, kind, key, value, entries, flags in (
        ("a map", _ARRAY, 4, 4, 1, 0),
        ("an array that can be mapped (Linux 5.5)", _ARRAY, 4, 4, 1, _MMAPABLE),
        ("a ring buffer (Linux 5.8)", _RING_BUFFER, 0, 0, resource.getpagesize(), 0),
    ):
        attributes = struct.pack("<5I108x", kind, key, value, entries, flags)
        reason = try_fd_syscall("bpf", 0, ctypes.c_char_p(attributes), len(attributes))
        if reason:
            failed = f"{what} cannot be created: {reason}"
            break
    return Fact(
        name="BPF",
        have=None if reason == "EPERM" and os.geteuid() else not failed,
        detail=failed or "maps, mapped arrays and ring buffers can be created",
        needed_for="all probes",
        how="root, Linux 5.8 with CONFIG_BPF_SYSCALL, and a container profile that allows bpf(2)",
        modes=("observe", "enforce"),
    )


def _bcc() -> Fact:
    spec = importlib.util.find_spec("bcc")
    place = Path(spec.origin).parent if spec and spec.origin else None
    # PyPI's package named bcc is an unrelated library; the real one has libbcc.py.
    real = place is not None and (place / "libbcc.py").exists()
    found = f"{place}: an unrelated library of the same name" if place else "not found"
    return Fact(
        name="bcc",
        have=real,
        detail=str(place) if real else found,
        needed_for="compiling the probes",
        how="apt install python3-bpfcc, and run 'make' once: it links bcc into .venv",
        modes=("observe", "enforce"),
    )


def _memlock() -> Fact:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = hard == resource.RLIM_INFINITY
    return Fact(
        name="memlock",
        have=unlimited or kernel_version() >= (5, 11),
        detail="unlimited" if unlimited else f"{soft >> 10} KiB, at most {hard >> 10} KiB",
        needed_for="BPF maps, before Linux 5.11 only (later kernels charge the memory cgroup)",
        how="ulimit -l unlimited, or LimitMEMLOCK=infinity in the service's unit",
    )


def _state_dir() -> Fact:
    run = Path("/run")
    tmpfs = any(each.point == run for each in mounts(None, {"tmpfs"}))
    return Fact(
        name="tmpfs for the journal",
        have=tmpfs,
        detail=str(run) if tmpfs else f"{run} is on a disk",
        needed_for="a journal that ends with this boot (on disk, the boot id marks old records)",
        how="mount -t tmpfs -o mode=0700 tmpfs /run/sweetpoint",
    )
