# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Configured workloads: cgroups that the section ``workloads`` names by path or pattern.

A workload is identified by the kernfs id of its cgroup. If a cgroup is removed and another one is
made at its path, the next scan returns another workload.
"""

from collections.abc import Iterable, Iterator
import fnmatch
import os
from pathlib import Path
import stat

from controller.config.load import ConfigError, WorkloadRule
from controller.core.model import CgroupId, Workload
from controller.host.facts import CgroupLayout

__all__ = ("scan",)

_MAGIC = frozenset("*?[")


def scan(
    layout: CgroupLayout, rules: Iterable[WorkloadRule], *, missing_ok: bool
) -> tuple[Workload, ...]:
    """Return the present workloads, sorted by path.

    :param missing_ok: whether a rule without a pattern may match nothing. At start that is most
        likely a typing error; later the workload may have ended.
    :raises ConfigError: two rules match one cgroup, one workload lies inside another, a cgroup that
        is named without a pattern is missing, or a cgroup has no cpu controller.
    """
    found: dict[str, tuple[WorkloadRule, Workload]] = {}
    problems: list[str] = []
    for rule in rules:
        matches = list(_match(layout.mount, rule.cgroup.strip("/").split("/")))
        if not matches and not missing_ok and not _MAGIC & set(rule.cgroup):
            problems.append(
                f"{rule.origin}: cgroup: {rule.cgroup} does not exist below {layout.mount}; start "
                "the workload first, or name it by a pattern if it comes and goes"
            )
        for path, inode in matches:
            if path in found:
                other = found[path][0]
                problems.append(
                    f"{rule.origin}: cgroup: {path} already belongs to the workload "
                    f"{other.name!r} ({other.origin})"
                )
                continue
            found[path] = (rule, _workload(layout, rule, path, inode))
            if layout.version == "v2" and not (layout.mount / path[1:] / "cpu.max").exists():
                problems.append(
                    f"{rule.origin}: cgroup: {path} has no cpu controller; write +cpu into the "
                    "cgroup.subtree_control of the cgroup above it"
                )
    problems += _nested(found)
    if problems:
        raise ConfigError(problems)
    return tuple(found[path][1] for path in sorted(found))


def _workload(layout: CgroupLayout, rule: WorkloadRule, path: str, inode: int) -> Workload:
    name = rule.name
    if _MAGIC & set(rule.cgroup):
        name = f"{rule.name}:{path.rpartition('/')[2]}"
    cgroup = CgroupId(layout.hierarchy, inode)
    return Workload(name, cgroup, path, rule.qos, rule.service, rule.profile, rule.core_group)


def _match(mount: Path, patterns: list[str]) -> Iterator[tuple[str, int]]:
    """Yield (path below the mount, inode) of every cgroup that matches, one level at a time."""
    level: list[tuple[str, int]] = [("", 0)]
    for pattern in patterns:
        level = [
            (f"{parent}/{name}", inode)
            for parent, _ in level
            for name, inode in _children(mount, parent, pattern)
        ]
    yield from level


def _children(mount: Path, parent: str, pattern: str) -> list[tuple[str, int]]:
    folder = mount / parent[1:]
    try:
        if not _MAGIC & set(pattern):
            status = (folder / pattern).stat(follow_symlinks=False)
            return [(pattern, status.st_ino)] if stat.S_ISDIR(status.st_mode) else []
        with os.scandir(folder) as entries:
            return [
                (entry.name, entry.inode())
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and fnmatch.fnmatchcase(entry.name, pattern)
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _nested(found: dict[str, tuple[WorkloadRule, Workload]]) -> Iterator[str]:
    # A knob of the outer cgroup would act on the inner one as well.
    for path, (rule, workload) in found.items():
        parent = path.rpartition("/")[0]
        while parent:
            if parent in found:
                outer = found[parent][1]
                yield (
                    f"{rule.origin}: cgroup: {workload.path} lies inside {outer.path} of the "
                    f"workload {outer.name!r}"
                )
            parent = parent.rpartition("/")[0]
