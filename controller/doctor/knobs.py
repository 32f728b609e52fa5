# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Facts about the optional knobs of this host: resctrl, memory limits, io.max and io.weight."""

from pathlib import Path
import re

from controller.core.knob_values import format_cpuset
from controller.core.names import Knob
from controller.core.settings import IoSettings, MbaUnit
from controller.doctor.fact import Fact, purpose, read_text
from controller.host.disks import find_disks, has_bfq, weighted_disks
from controller.host.exclusive_cpus import KUBELET_STATE, read_state
from controller.host.facts import CgroupLayout, HostError, find_cgroup_layout
from controller.host.memory import find_memory
from controller.host.resctrl import ResctrlInfo, find_mount, read_info

__all__ = ("find_knobs",)

_UNITS = {
    MbaUnit.PERCENT: "percent",
    MbaUnit.ABSOLUTE: "absolute steps",
    MbaUnit.MBPS: "MB/s by the kernel's own loop",
}
_V2 = (
    "boot with cgroup v2 only (systemd.unified_cgroup_hierarchy=1), where one tree has the cpu, "
    "memory and io controllers"
)


def find_knobs() -> tuple[Fact, ...]:
    """Find the facts about resctrl and about the knobs in cgroup files."""
    try:
        layout = find_cgroup_layout()
    except (HostError, OSError):
        return (_resctrl(),)
    return (_resctrl(), _memory(layout), _memory_limit(layout), _io(layout), _cpuset(layout))


def _resctrl() -> Fact:
    known = "resctrl" in read_text("/proc/filesystems").split()
    flags = set(re.findall(r"\b(?:cat_l[23]|mba|cqm_\w+|cdp_l3)\b", read_text("/proc/cpuinfo")))
    how = "a CPU with RDT or AMD's equivalent, and CONFIG_X86_CPU_RESCTRL"
    detail = ", ".join(sorted(flags)) or "the CPU does not support it"
    have = False
    mount = find_mount()
    if known and mount is None:
        detail += ", not mounted"
        how = "mount -t resctrl resctrl /sys/fs/resctrl, or resctrl: {mount: true} in the config"
    elif mount is not None:
        try:
            have, detail = True, f"{mount.point}: {_describe(read_info(mount))}"
        except (OSError, ValueError) as error:
            detail = f"{mount.point}: {error}"
    return Fact(
        name="resctrl",
        have=have,
        detail=detail,
        needed_for=purpose(Knob.LLC_WAYS, Knob.MBA),
        how=how,
    )


def _describe(info: ResctrlInfo) -> str:
    facts = info.facts
    parts = []
    if facts.llc_ways:
        split = ", separate for code and data" if info.cdp else ""
        parts.append(f"{facts.llc_ways} cache ways, at least {facts.llc_min_ways}{split}")
    if facts.mba_max:
        steps = f" in steps of {facts.mba_step}" if facts.mba_step > 1 else ""
        parts.append(f"bandwidth from {facts.mba_min} {_UNITS[facts.mba_unit]}{steps}")
    if info.closids:
        parts.append(f"{info.closids} groups")
    if info.rmids:
        parts.append(f"{info.rmids} monitored groups")
    return "; ".join(parts) or "neither limits nor monitors"


def _memory(layout: CgroupLayout) -> Fact:
    have = _v2_has(layout, "memory", "memory.high")
    return Fact(
        name="memory.high",
        have=have,
        detail="memory.high" if have is not False else _why_not(layout, "memory"),
        needed_for=purpose(Knob.MEMORY_HIGH),
        how=_V2 + " (v1 has a soft limit only, which takes effect too late)",
    )


def _memory_limit(layout: CgroupLayout) -> Fact:
    version, mount = find_memory(layout.unified)
    if mount is None:
        have: bool | None = False
        detail = "no hierarchy has the memory controller"
    elif version == "v1":
        have = (mount / "memory.limit_in_bytes").exists()
        detail = f"memory.limit_in_bytes in {mount}, for cgroups of the same path as of cpu"
    else:
        has_it = "memory" in read_text(mount / "cgroup.controllers").split()
        have = _any_has(mount, "memory.max") if has_it else False
        detail = "memory.max" if has_it else f"{mount} does not have the memory controller"
    return Fact(
        name="memory limit",
        have=have,
        detail=detail,
        needed_for=purpose(Knob.MEMORY_MAX),
        how="boot without cgroup_disable=memory, and mount the memory controller",
    )


def _io(layout: CgroupLayout) -> Fact:
    names = [name for name in ("io.max", "io.weight") if _v2_has(layout, "io", name) is not False]
    costed = weighted_disks(layout.mount)
    detail = " and ".join(names) or _why_not(layout, "io")
    if "io.weight" in names:
        detail += f"; weights count on {', '.join(costed) or 'no disk (io.cost.qos enables none)'}"
        bfq = [each.device for each in find_disks(IoSettings()) if has_bfq(each.device)]
        if bfq:
            detail += f"; BFQ schedules {', '.join(bfq)}, where io.iocost enables nothing"
    return Fact(
        name="io.max, io.weight",
        have=bool(names),
        detail=detail,
        needed_for=purpose(Knob.IO_MAX, Knob.IO_WEIGHT),
        how=_V2 + ", with CONFIG_BLK_DEV_THROTTLING and CONFIG_BLK_CGROUP_IOCOST",
    )


def _cpuset(layout: CgroupLayout) -> Fact:
    have = _v2_has(layout, "cpuset", "cpuset.cpus")
    try:
        cpus = format_cpuset(read_state())
        detail = f"exclusive CPUs: {cpus or 'none'}"
        if not KUBELET_STATE.exists():
            detail += f", because there is no {KUBELET_STATE}"
    except OSError as error:
        have, detail = False, f"{KUBELET_STATE}: {error.strerror}"
    except ValueError as error:
        have, detail = False, f"{KUBELET_STATE}: {str(error)[:200]}"
    if layout.version == "v1":
        detail = "cgroup v1 refuses the sets of kubelet and runc below such a level (EACCES)"
    elif have is False and detail.startswith("exclusive"):
        detail = _why_not(layout, "cpuset")
    return Fact(
        name="cpuset.cpus",
        have=have,
        detail=detail,
        needed_for=purpose(Knob.CPUSET),
        how=_V2 + ", and kubelet with the static CPU manager",
    )


def _v2_has(layout: CgroupLayout, controller: str, name: str) -> bool | None:
    if layout.version == "v1" or controller not in _controllers(layout):
        return False
    return _any_has(layout.mount, name)


def _why_not(layout: CgroupLayout, controller: str) -> str:
    if layout.version == "v1":
        return "the cpu controller is on cgroup v1"
    if controller not in _controllers(layout):
        return f"{layout.mount} does not have the {controller} controller"
    return "this kernel was built without it"


def _controllers(layout: CgroupLayout) -> list[str]:
    return read_text(layout.mount / "cgroup.controllers").split()


def _any_has(mount: Path, name: str) -> bool | None:
    # On v2 only cgroups below the root have these files; ``None``: there is no such cgroup.
    if (mount / name).exists():
        return True
    controller = name.partition(".")[0]
    always = {"memory": "memory.current", "io": "io.stat"}[controller]
    children = [path for path in mount.iterdir() if (path / always).exists()]
    if any((path / name).exists() for path in children):
        return True
    return False if children else None
