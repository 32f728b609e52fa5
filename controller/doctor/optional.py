# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Facts about features that no mode requires: PMU, PSI, SMT, core scheduling, links, namespaces.

For links this module checks which of them can be shaped. Whether the kernel supports shaping at all
is tried like a probe, see ``controller.reconcilers.network.trial``.
"""

import contextlib
import ctypes
import errno
import os
from pathlib import Path
import re
import struct
from typing import NamedTuple

from controller.core.names import Knob
from controller.doctor.fact import Fact, purpose, read_text, try_fd_syscall
from controller.host.facts import HostError, find_cgroup_layout, libc
from controller.host.rtnetlink import RouteSocket, attributes

__all__ = (
    "find_links",
    "find_optional",
)

_GET_LINK, _GET_QDISC = 18, 38  # RTM_GETLINK, RTM_GETQDISC
_LINK = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, change
_TC = struct.Struct("=BxxxiIII")  # struct tcmsg: family, ifindex, handle, parent, info
_KIND, _NAME, _LINK_NETNSID = 1, 3, 37  # TCA_KIND, IFLA_IFNAME, IFLA_LINK_NETNSID
_UP, _LOOPBACK = 0x1, 0x8
_HOOKS = ("clsact", "ingress")
_SHOWN = 8


class _Qdisc(NamedTuple):
    kind: str
    handle: int


def find_links() -> Fact:
    """Find out which links that are up can be shaped. Pods' veths are listed last."""
    try:
        with contextlib.closing(RouteSocket()) as rtnetlink:
            names = _names(rtnetlink)
            qdiscs = _qdiscs(rtnetlink)
    except OSError as error:
        return _fact(None, str(error))
    links = [(name, *_check_qdiscs(qdiscs.get(ifindex, []))) for ifindex, name in names.items()]
    shown = [f"{name}: {reason}" for name, _, reason in links[:_SHOWN]]
    more = [f"and {len(links) - _SHOWN} more"] if len(links) > _SHOWN else []
    detail = ", ".join([*shown, *more]) or "no link except loopback is up"
    return _fact(any(shapeable for _, shapeable, _ in links), detail)


def _check_qdiscs(qdiscs: list[_Qdisc]) -> tuple[bool, str]:
    foreign = [q for q in qdiscs if q.handle and q.kind not in _HOOKS]
    if foreign:
        return False, f"{foreign[0].kind} {foreign[0].handle >> 16:x}: belongs to another program"
    multiqueue = [q.kind for q in qdiscs if q.kind in ("mq", "mqprio")]
    if multiqueue:
        return True, f"{multiqueue[0]}, only with multiqueue: force"
    return True, "can be shaped"


def _names(rtnetlink: RouteSocket) -> dict[int, str]:
    found = []
    for answer in rtnetlink.dump(_GET_LINK, _LINK.pack(0, 0, 0, 0, 0)):
        _, _, ifindex, flags, _ = _LINK.unpack_from(answer)
        link = attributes(answer, _LINK.size)
        if flags & _UP and not flags & _LOOPBACK:
            name = link[_NAME].rstrip(b"\0").decode(errors="replace")
            found.append((_LINK_NETNSID in link, ifindex, name))
    return {ifindex: name for _, ifindex, name in sorted(found)}


def _qdiscs(rtnetlink: RouteSocket) -> dict[int, list[_Qdisc]]:
    found: dict[int, list[_Qdisc]] = {}
    for answer in rtnetlink.dump(_GET_QDISC, _TC.pack(0, 0, 0, 0, 0)):
        _, ifindex, handle, _, _ = _TC.unpack_from(answer)
        kind = attributes(answer, _TC.size)[_KIND].rstrip(b"\0").decode(errors="replace")
        found.setdefault(ifindex, []).append(_Qdisc(kind, handle))
    return found


def _fact(have: bool | None, detail: str) -> Fact:
    return Fact(
        name="links",
        have=have,
        detail=detail,
        needed_for=purpose(Knob.TC_CEILING),
        how="a section network: in the configuration, and a link with the kernel's own qdisc; of a "
        "foreign qdisc single classes can be adopted",
    )


_PR_SCHED_CORE = 62  # include/uapi/linux/prctl.h; sub-command 0 reads the cookie
# include/uapi/linux/capability.h; the first to enter a namespace, the second to open its file.
_CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_SYS_PTRACE": 19}
_SMT = Path("/sys/devices/system/cpu/smt")
_NRI = Path("/var/run/nri/nri.sock")


def find_optional() -> tuple[Fact, ...]:
    """Find all facts that no mode requires."""
    return (
        _pmu(),
        _psi(),
        _smt(),
        _core_scheduling(),
        find_links(),
        _netns(),
        _nri(),
        _mounted("tracefs", "/sys/kernel/tracing", "reading the format of tracepoints by hand"),
        _mounted("bpf", "/sys/fs/bpf", "inspecting pinned BPF objects (sweetpoint pins none)"),
    )


def _nri() -> Fact:
    have = _NRI.is_socket()
    return Fact(
        name="NRI",
        have=have,
        detail=f"the container runtime listens at {_NRI}" if have else f"no socket {_NRI}",
        needed_for="knobs of a new container before it runs; without it a scan finds it",
        how="containerd 2.x or CRI-O; in a pod the chart's value nri.mount, elsewhere nri.socket",
    )


def _pmu() -> Fact:
    # struct perf_event_attr, first version: hardware event 0 (cycles), disabled, user space only.
    attributes = struct.pack("<IIQQQQQ16x", 0, 64, 0, 0, 0, 0, 1 | 1 << 5)
    failed = try_fd_syscall("perf_event_open", ctypes.c_char_p(attributes), 0, -1, -1, 0)
    devices = Path("/sys/bus/event_source/devices")
    sources = ", ".join(sorted(p.name for p in devices.iterdir())) if devices.is_dir() else "none"
    return Fact(
        name="hardware PMU",
        have=None if failed in ("EACCES", "EPERM") else not failed,
        detail=f"{failed or 'cycles can be counted'} (event sources: {sources})",
        needed_for="CPI and cache misses of services, for the cache channel",
        how="a physical machine, or a type of virtual machine with a PMU; or other sources in the "
        "section counters: of the configuration",
    )


def _psi() -> Fact:
    have = Path("/proc/pressure/cpu").exists()
    try:
        unified = find_cgroup_layout().unified
    except (HostError, OSError):
        unified = None
    per_cgroup = unified is not None and (unified / "cpu.pressure").exists()
    return Fact(
        name="PSI",
        have=have,
        detail=("per host and per cgroup" if per_cgroup else "per host only") if have else "off",
        needed_for="pressure of the host and of services in the metrics",
        how="CONFIG_PSI, and psi=1 on the kernel's command line",
    )


def _smt() -> Fact:
    active = read_text(_SMT / "active").strip()
    return Fact(
        name="SMT",
        have=active == "1",
        detail=read_text(_SMT / "control").strip() or "unknown",
        needed_for="core scheduling (two threads of a core disturb each other)",
        how="nothing to do: without SMT there is no such disturbance",
    )


def _core_scheduling() -> Fact:
    cookie = ctypes.c_ulong()
    failed = libc().prctl(_PR_SCHED_CORE, 0, 0, 0, ctypes.byref(cookie)) != 0
    reasons = {errno.EINVAL: "not in this kernel", errno.ENODEV: "no SMT"}
    number = ctypes.get_errno()
    return Fact(
        name="core scheduling",
        have=not failed,
        detail=reasons.get(number, os.strerror(number)) if failed else "prctl works",
        needed_for=purpose(Knob.CORE_COOKIE),
        how="CONFIG_SCHED_CORE on a machine with SMT",
    )


def _netns() -> Fact:
    try:
        unified = find_cgroup_layout().unified
    except (HostError, OSError):
        unified = None
    match = re.search(r"^CapEff:\s*(\w+)", read_text("/proc/self/status"), re.MULTILINE)
    have = int(match[1], 16) if match else 0
    missing = [name for name, bit in _CAPABILITIES.items() if not have >> bit & 1]
    use = "workloads without a cgroup2 directory" if unified else "every workload: no cgroup2 here"
    return Fact(
        name="network namespaces",
        have=not missing,
        detail=f"no {' and no '.join(missing)}" if missing else f"can be entered; used for {use}",
        needed_for="network bytes of workloads whose packets cannot be counted by cgroup",
        how="the capabilities, and access to the host's processes (hostPID in a pod)",
    )


def _mount_points(fs_type: str) -> list[str]:
    lines = [line.split() for line in read_text("/proc/self/mounts").splitlines()]
    return [fields[1] for fields in lines if len(fields) > 2 and fields[2] == fs_type]


def _mounted(fs_type: str, where: str, needed_for: str) -> Fact:
    points = _mount_points(fs_type)
    return Fact(
        name="bpffs" if fs_type == "bpf" else fs_type,
        have=bool(points),
        detail=points[0] if points else "not mounted",
        needed_for=needed_for,
        how=f"mount -t {fs_type} {fs_type} {where}",
    )
