# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Kills for want of memory in the cgroup of this process, and the memory limit of that cgroup.

Of cgroup v2 the counters are in ``memory.events``: ``oom_kill`` counts killed processes, ``oom``
how often this cgroup had no memory left below its own limit (mm/memcontrol.c). v1 has ``oom_kill``
in ``memory.oom_control`` alone; whether the limit was the cause is known by the highest usage
(``memory.failcnt`` stays 0 in Linux 6.18).

The guardian reads them, so this module imports little until the cgroup is searched.
"""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

__all__ = ("OomCounters", "find_memory_cgroup", "read_oom")

# PAGE_COUNTER_MAX and above, as v1 shows "no limit".
_NO_LIMIT_BYTES = 1 << 62
# What a process may ask for at once, and be killed for with less in use.
_HUGE_PAGE_BYTES = 2 << 20


class OomCounters(NamedTuple):
    """Killed processes, how often for the limit, and the limit; ``None``: there is none."""

    kills: int
    at_limit: int
    limit_bytes: int | None


def read_oom(cgroup: Path | None) -> OomCounters | None:
    """Return the counters of *cgroup*; ``None`` where the kernel does not show them."""
    if cgroup is None:
        return None
    try:
        if (cgroup / "memory.events").exists():
            events = _fields(cgroup / "memory.events")
            limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
            at_limit = events["oom"]
        else:
            events = _fields(cgroup / "memory.oom_control")
            limit = (cgroup / "memory.limit_in_bytes").read_text(encoding="ascii").strip()
            peak = int((cgroup / "memory.max_usage_in_bytes").read_text(encoding="ascii"))
            at_limit = events["oom_kill"] if peak > int(limit) - _HUGE_PAGE_BYTES else 0
        limited = limit != "max" and int(limit) < _NO_LIMIT_BYTES
        return OomCounters(events["oom_kill"], at_limit, int(limit) if limited else None)
    except (OSError, KeyError, ValueError):
        return None


def _fields(file: Path) -> dict[str, int]:
    lines = file.read_text(encoding="ascii").splitlines()
    return {name: int(value) for name, _, value in (line.partition(" ") for line in lines)}


def find_memory_cgroup(
    pid: int, pod_uid: str | None = None, proc: Path = Path("/proc")
) -> Path | None:
    """Return the directory of the memory cgroup of the process *pid*; ``None``: not visible here.

    :param pod_uid: the id of the pod that the process belongs to, to find it from a cgroup
        namespace of its own; its container has the whole hierarchy of the host.
    """
    from controller.host.facts import mounts

    with contextlib.suppress(OSError, ValueError):
        # cgroups(7): number:controllers:path, without controllers for cgroup2.
        lines = (proc / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines()
        paths = [line.split(":", 2)[1:] for line in lines]
        v1 = next((path for names, path in paths if "memory" in names.split(",")), None)
        path = v1 or next((path for names, path in paths if not names), "")
        mountinfo = os.fsdecode((proc / str(pid) / "mountinfo").read_bytes())
        for mount in mounts(mountinfo, {"cgroup2"} if v1 is None else {"cgroup"}):
            if v1 is not None and "memory" not in mount.options:
                continue
            if mount.root.startswith("/.."):
                depth = mount.root.count("..")
                found = None if pod_uid is None else _search(mount.point, depth, pid, pod_uid)
            else:
                found = mount.point / path.removeprefix(mount.root.rstrip("/")).lstrip("/")
            if read_oom(found) is not None:
                return found
    return None


def _search(mount: Path, depth: int, pid: int, pod_uid: str) -> Path | None:
    # The names above the cgroup are not visible from its namespace, their number is.
    marks = (f"pod{pod_uid}", f"pod{pod_uid.replace('-', '_')}")
    level = [mount]
    for _ in range(depth):
        below = [each for folder in level for each in folder.iterdir() if each.is_dir()]
        level = [each for each in below if any(mark in each.name for mark in marks)] or below
    for folder in level:
        if str(pid) in (folder / "cgroup.procs").read_text(encoding="ascii").split():
            return folder
    return None
