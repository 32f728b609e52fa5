# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Configured workloads: cgroups that the section ``workloads`` names by path or pattern.

A workload is identified by the kernfs id of its cgroup. If a cgroup is removed and another one is
made at its path, the next scan returns another workload.

A scan never fails for what exists or not: services start after the agent, stop and come back, and
the agent protects the others meanwhile. What is wrong in the text of the rules alone is found when
the file is read.
"""

from collections.abc import Callable, Iterable, Iterator
import fnmatch
import os
from pathlib import Path
import re
import stat
from typing import NamedTuple

from controller.config.workload_rules import WorkloadRule, is_pattern
from controller.core.model import CgroupId, Workload
from controller.host.facts import CgroupLayout
from controller.host.names import printable_name
from controller.host.own_cgroup import OWN_CGROUP

__all__ = ("ConfiguredWorkloads", "Scan", "scan")

# A rule, and a workload by it.
_Found = tuple[WorkloadRule, Workload]


class Scan(NamedTuple):
    """The present workloads, sorted by path, and why others are none.

    ``left_out`` is a text for each cgroup that a rule matches and that cannot be a workload.
    ``missing`` is one for each cgroup that a rule names without a pattern and that does not exist.
    """

    workloads: tuple[Workload, ...]
    left_out: tuple[str, ...]
    missing: tuple[str, ...]


def scan(layout: CgroupLayout, rules: Iterable[WorkloadRule]) -> Scan:
    """Return what ``ConfiguredWorkloads.scan`` does, for a single scan."""
    return ConfiguredWorkloads(layout).scan(rules)


class ConfiguredWorkloads:
    """Scans for the workloads of rules; an unchanged workload is the same object in the next scan.

    Each directory with matches is listed in every scan. Of the cgroups in it only new ones cost
    more than that, because a tenant may have thousands of them.

    :param layout: the hierarchy with the cgroups of the workloads.
    """

    def __init__(self, layout: CgroupLayout) -> None:
        self._layout = layout
        self._known: dict[str, _Found] = {}  # by path; those that are workloads
        self._workloads: tuple[Workload, ...] = ()

    def scan(self, rules: Iterable[WorkloadRule]) -> Scan:
        """Return the present workloads, and why others are none.

        A cgroup that matches a rule is left out if it belongs to an earlier rule, lies inside
        another workload, or has no cpu controller. The others are not affected: a user with a
        delegated cgroup can cause each of these below a pattern. Of two nested cgroups the inner
        one is left out, because a knob of the outer one acts on it as well.
        """
        mount = self._layout.mount
        found: dict[str, _Found] = {}
        problems: list[tuple[WorkloadRule, str]] = []
        missing: list[str] = []
        for rule in rules:
            matches = list(_match(mount, rule.cgroup.strip("/").split("/")))
            if not matches and not is_pattern(rule.cgroup):
                missing.append(f"{rule.origin}: cgroup: {rule.cgroup} does not exist below {mount}")
            for path, inode in matches:
                if path in found:
                    other = found[path][0]
                    text = f"{path} already belongs to the workload {other.name!r} ({other.origin})"
                    problems.append((rule, text))
                else:
                    found[path] = self._find(rule, path, inode)
        kept = self._without_nested(found, problems)
        left_out = tuple(f"{rule.origin}: cgroup: {text}" for rule, text in problems)
        self._known = kept
        workloads = tuple(workload for _, workload in kept.values())
        if workloads != self._workloads:
            self._workloads = workloads
        return Scan(self._workloads, left_out, tuple(missing))

    def _find(self, rule: WorkloadRule, path: str, inode: int) -> _Found:
        known = self._known.get(path)
        if known is not None and known[0] is rule and known[1].cgroup.id == inode:
            return known
        return rule, _workload(self._layout, rule, path, inode)

    def _without_nested(
        self, found: dict[str, _Found], problems: list[tuple[WorkloadRule, str]]
    ) -> dict[str, _Found]:
        """Return those of *found* that can be workloads; add the others to *problems*."""
        kept: dict[str, _Found] = {}
        # By directory: the workload that it lies in, and whether its cgroups have the controller.
        # Siblings have the same ones, so the first one answers for all that were kept before.
        folders: dict[str, tuple[Workload | None, bool]] = {}
        for path in sorted(found):  # an outer cgroup before those in it
            rule, _ = each = found[path]
            folder = path.rpartition("/")[0]
            if folder not in folders:
                above = (kept[level][1] for level in (folder, *_above(folder)) if level in kept)
                folders[folder] = next(above, None), self._has_cpu(path)
            outer, has_cpu = folders[folder]
            if outer is not None:
                text = f"{path} lies inside {outer.path} of the workload {outer.name!r}"
                problems.append((rule, text))
            elif (has_cpu and each is self._known.get(path)) or self._has_cpu(path):
                kept[path] = each
            elif (self._layout.mount / path[1:]).exists():  # not removed in the meantime
                text = (
                    f"{path} has no cpu controller; write +cpu into the cgroup.subtree_control of "
                    "the cgroup above it"
                )
                problems.append((rule, text))
        return kept

    def _has_cpu(self, path: str) -> bool:
        layout = self._layout
        return layout.version == "v1" or (layout.mount / path[1:] / "cpu.max").exists()


def _above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _workload(layout: CgroupLayout, rule: WorkloadRule, path: str, inode: int) -> Workload:
    name = rule.name
    if is_pattern(rule.cgroup):
        name = f"{rule.name}:{printable_name(path.rpartition('/')[2])}"
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
        if not is_pattern(pattern):
            status = (folder / pattern).stat(follow_symlinks=False)
            return [(pattern, status.st_ino)] if stat.S_ISDIR(status.st_mode) else []
        fits: Callable[[str], object] = re.compile(fnmatch.translate(pattern)).match
        with os.scandir(folder) as entries:
            return [
                (entry.name, entry.inode())
                for entry in entries
                if entry.is_dir(follow_symlinks=False)
                and fits(entry.name)
                # A pattern must not have the agent squeeze itself.
                and (parent or entry.name != OWN_CGROUP)
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
