# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What knobs in cgroup files have in common: planned steps, written one after the other.

A knob may be spread over several files that the kernel checks against each other. The pure
``steps`` of a knob says what to write in which order and which value the knob has after each
write, so that a process that died in the middle is recognised by the one that restores.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from actuators.base import GoneError, RefusedError, Trace, Turn, no_trace
from actuators.cgroupfs import Cgroup
from controller.model import Action, Failure, Knob, KnobValue, Outcome, Target, TargetKind

__all__ = ("CgroupKnob", "Step")


class Step(NamedTuple):
    """One write of *text* to *file*; *state* is the knob's value once the kernel took it."""

    file: str
    text: str
    state: KnobValue


class CgroupKnob(ABC):
    """Base of the actuators for cgroup files; implements ``base.Actuator``.

    :param mount: where the hierarchy with the cpu controller is mounted.
    :param hierarchy: its name in ``Target.scope``.
    :param version: which files it has.
    """

    knob: Knob
    # Files that tell, per version, whether the kernel has the knob.
    files: ClassVar[dict[Literal["v1", "v2"], str]]

    checks_ancestors = False

    def __init__(self, mount: Path, hierarchy: str, version: Literal["v1", "v2"]) -> None:
        self.mount = mount
        self.hierarchy = hierarchy
        self.version = version

    @abstractmethod
    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: the writes from *previous* to *value*; empty if they are equal.

        :raises ValueError: one of them is not a value of this knob.
        """

    @abstractmethod
    def read_from(self, cgroup: Cgroup) -> KnobValue:
        """Return the knob's value in an open cgroup; errors as ``Cgroup.read``."""

    @abstractmethod
    def turn(self, previous: KnobValue, value: KnobValue) -> Turn:
        """Pure: when in a tick this write is made."""

    def same(self, expected: KnobValue, found: KnobValue) -> bool:
        """Pure: equal, unless a knob says otherwise."""
        return expected == found

    def concerns(self, target: Target) -> bool:
        """Pure: every cgroup."""
        return target.kind is TargetKind.CGROUP

    def supported(self) -> str | None:
        """Return why this host does not have the knob, or ``None``.

        On v2 the root has no cpu files: any first-level cgroup that has the controller is
        asked, and where there is none yet the kernel gets the benefit of the doubt.
        """
        name = self.files[self.version]
        if self.version == "v1":
            missing = not (self.mount / name).exists()
        else:
            children = [p for p in self.mount.iterdir() if (p / "cpu.weight").exists()]
            missing = bool(children) and not any((p / name).exists() for p in children)
        return f"this kernel has no {name} in {self.mount}" if missing else None

    def read(self, target: Target) -> KnobValue:
        """Return the knob's value now; errors as ``base.Actuator.read``."""
        self._check_scope(target)
        with Cgroup(self.mount, target) as cgroup:
            return self.read_from(cgroup)

    def apply(self, action: Action, trace: Trace = no_trace) -> Outcome:
        """Write the steps of *action* and read back; see ``base.Actuator.apply``."""
        self._check_scope(action.target)
        steps = self.steps(action.previous, action.value)
        try:
            with Cgroup(self.mount, action.target) as cgroup:
                return self._write(cgroup, action, steps, trace)
        except GoneError as error:
            return Outcome(action=action, applied=None, failure=Failure.GONE, message=str(error))
        except RefusedError as error:
            return _refused(action, None, error)

    def passes_through(self, previous: KnobValue, value: KnobValue) -> tuple[KnobValue, ...]:
        """Pure: every value on the way, both ends included."""
        return (previous, *(step.state for step in self.steps(previous, value)), value)

    def _write(
        self, cgroup: Cgroup, action: Action, steps: tuple[Step, ...], trace: Trace
    ) -> Outcome:
        try:
            for step in steps:
                trace(f"before write {step.file}={step.text}")
                cgroup.write(step.file, step.text)
                trace(f"after write {step.file}={step.text}")
        except RefusedError as error:
            return _refused(action, self.read_from(cgroup), error)
        return Outcome(action=action, applied=self.read_from(cgroup))

    def _check_scope(self, target: Target) -> None:
        if target.scope != self.hierarchy:
            raise ValueError(f"{target.path}: hierarchy {target.scope}, not {self.hierarchy}")


def _refused(action: Action, applied: KnobValue | None, error: RefusedError) -> Outcome:
    return Outcome(
        action=action,
        applied=applied,
        failure=Failure.REFUSED,
        errno=error.errno,
        message=str(error),
    )
