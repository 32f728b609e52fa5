# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Helpers of actuator tests: raw knob files, executors, actions, and records of the journal."""

import json
import os
from pathlib import Path
import zlib

from actuators.base import Actuator, Trace, no_trace
from actuators.core_scheduling.cookie import CoreCookie
from actuators.executor import Executor
from actuators.journal import Journal
from actuators.oom_order import OomOrder
from actuators.registry import build
from controller.core.decision import Action, Outcome
from controller.core.model import Knob, KnobValue, Target, TargetKind
from controller.host.facts import CgroupLayout

FILES = (
    "cpu.cfs_quota_us",
    "cpu.cfs_period_us",
    "cpu.cfs_burst_us",
    "cpu.shares",
    "cpu.max",
    "cpu.max.burst",
    "cpu.weight",
    "cpu.idle",
    "cpuset.cpus",
    "memory.high",
    "memory.limit_in_bytes",
    "memory.max",
    "io.weight",
    "io.max",
)


class Interruption:
    """Another program that sets ``quota_us``, if any, when the next record is stored."""

    def __init__(self, cgroup: Path, quota_us: int) -> None:
        self._cgroup, self.quota_us = cgroup, quota_us

    def __call__(self, step: str) -> None:
        if step == "after journal rename" and self.quota_us:
            set_quota(self._cgroup, self.quota_us, 100_000)
            self.quota_us = 0


def dump(root: Path) -> dict[str, str]:
    """Return the contents of all knob files of *root* and below."""
    found = {}
    for directory, _, files in os.walk(root):
        for name in sorted(set(files) & set(FILES)):
            path = Path(directory, name)
            found[str(path.relative_to(root))] = path.read_text().strip()
    return found


def set_quota(cgroup: Path, quota_us: int | None, period_us: int, burst_us: int = 0) -> None:
    """Set a quota without code of sweetpoint, as another program does."""
    if (cgroup / "cpu.max").exists():
        (cgroup / "cpu.max").write_text(f"{quota_us or 'max'} {period_us}")
        (cgroup / "cpu.max.burst").write_text(str(burst_us))
        return
    (cgroup / "cpu.cfs_period_us").write_text(str(period_us))
    (cgroup / "cpu.cfs_quota_us").write_text(str(quota_us or -1))
    (cgroup / "cpu.cfs_burst_us").write_text(str(burst_us))


def set_weight(cgroup: Path, weight: int) -> None:
    """Set cpu.shares or cpu.weight."""
    name = "cpu.shares" if (cgroup / "cpu.shares").exists() else "cpu.weight"
    (cgroup / name).write_text(str(weight))


def make_child(parent: Path, name: str) -> Path:
    """Make a cgroup whose children have the same controllers."""
    child = parent / name
    child.mkdir()
    control = child / "cgroup.subtree_control"
    if control.exists():
        has = set((child / "cgroup.controllers").read_text().split())
        of_knobs = has & {"cpu", "cpuset", "memory", "io"}
        control.write_text(" ".join(f"+{name}" for name in sorted(of_knobs)))
    return child


def make_limited(parent: Path, name: str = "pod") -> Path:
    """Make a cgroup with a quota, a burst and a weight, which take several writes to restore."""
    child = make_child(parent, name)
    set_quota(child, 150_000, 100_000, 10_000)
    set_weight(child, 333)
    return child


def target_of(layout: CgroupLayout, cgroup: Path) -> Target:
    """Return the target of an existing cgroup."""
    path = "/" + str(cgroup.relative_to(layout.mount))
    return Target(TargetKind.CGROUP, layout.hierarchy, cgroup.stat().st_ino, path)


def executor(layout: CgroupLayout, state_dir: Path, trace: Trace = no_trace) -> Executor:
    """Return a new executor, as a new process makes it."""
    return Executor(Journal(state_dir / "journal", trace), every_actuator(layout, state_dir), trace)


def every_actuator(layout: CgroupLayout, state_dir: Path) -> tuple[Actuator, ...]:
    """Return the actuators of a process that keeps its state in *state_dir*."""
    return build(layout, CoreCookie(state_dir), OomOrder(layout, state_dir))


def action(target: Target, knob: Knob, previous: str, value: str) -> Action:
    """Return an action as the planner makes it."""
    return Action(
        target=target,
        knob=knob,
        previous=KnobValue(previous),
        value=KnobValue(value),
        reason="test",
    )


def squeeze_limited(target: Target) -> list[Action]:
    """Return two actions that squeeze a cgroup of ``make_limited``."""
    return [
        action(target, Knob.CPU_QUOTA, "150000 100000 10000", "5000 10000 0"),
        action(target, Knob.SCHED_IDLE, "0 333", "1"),
    ]


def make_newer(record: Path, *, in_place: bool = False, undo: bool = False) -> Path:
    """Make a record one of the format 2, or with *undo* one of the format 1 again.

    :param in_place: whether its name stays that of the format 1.
    :returns: the new path.
    """
    body = json.loads(record.read_bytes())
    del body["crc"]
    body["format"] = 1 if undo else 2
    body["crc"] = zlib.crc32(json.dumps(body, sort_keys=True).encode())
    record.write_text(json.dumps(body))
    stem = record.name.removesuffix(".json").removesuffix(".v2")
    return record.rename(record.with_name(stem + (".json" if undo or in_place else ".v2.json")))


def applied(outcome: Outcome) -> str | None:
    """Return what was written; the outcome must be a success on a value that was known."""
    assert outcome.failure is None, outcome
    assert outcome.foreign is None, outcome
    return outcome.applied
