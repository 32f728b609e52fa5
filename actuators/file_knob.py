# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What knobs in cgroup files have in common: where the hierarchy is, and who has the files.

What knobs made of files have in common: planned steps, taken one after the other.

A knob may be spread over several files that the kernel checks against each other. The pure
``steps`` of a knob says what to write in which order and which value the knob has after each
write, so that a process that died in the middle is recognised by the one that restores.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Generic, Literal, NamedTuple, TypeVar

from actuators.base import GoneError, Phase, RefusedError, Trace, gone, no_trace, refused
from actuators.kernfs import Cgroup, Directory
from controller.core.decision import Action, Outcome
from controller.core.model import Knob, KnobValue, Target, TargetKind

__all__ = (
    "CgroupKnob",
    "Step",
    "StepKnob",
)

_Dir = TypeVar("_Dir", bound=Directory)


class Step(NamedTuple):
    """One write of *text* to *file*; *state* is the knob's value once the kernel took it."""

    file: str
    text: str
    state: KnobValue


class StepKnob(ABC, Generic[_Dir]):
    """Base of the actuators that work in one directory; implements ``base.Actuator``."""

    knob: Knob

    checks_ancestors = False

    @abstractmethod
    def applies_to(self, target: Target) -> bool:
        """Pure: whether *target* is of the kind that has this knob."""

    @abstractmethod
    def unsupported_reason(self) -> str | None:
        """Return why this host does not have the knob now, or ``None``."""

    @abstractmethod
    def open(self, target: Target) -> _Dir:
        """Return the open directory that *target* means; errors as ``kernfs.Directory``."""

    @abstractmethod
    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: the writes from *previous* to *value*; empty if they are equal.

        :raises ValueError: one of them is not a value of this knob.
        """

    @abstractmethod
    def read_from(self, directory: _Dir) -> KnobValue:
        """Return the knob's value in an open directory; errors as ``Directory.read``."""

    @abstractmethod
    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: when in a tick this write is made."""

    def write_step(self, directory: _Dir, step: Step) -> None:
        """Take one step; errors as ``Directory.write``."""
        directory.write(step.file, step.text)

    def matches(self, expected: KnobValue, found: KnobValue) -> bool:
        """Pure: equal, unless a knob says otherwise."""
        return expected == found

    def read(self, target: Target) -> KnobValue:
        """Return the knob's value now; errors as ``base.Actuator.read``."""
        with self.open(target) as directory:
            return self.read_from(directory)

    def apply(self, action: Action, trace: Trace = no_trace) -> Outcome:
        """Take the steps of *action* and read back; see ``base.Actuator.apply``."""
        steps = self.steps(action.previous, action.value)
        try:
            with self.open(action.target) as directory:
                return self._write_steps(directory, action, steps, trace)
        except GoneError as error:
            return gone(action, error)
        except RefusedError as error:
            return refused(action, None, error.errno, str(error))

    def intermediate_values(self, previous: KnobValue, value: KnobValue) -> tuple[KnobValue, ...]:
        """Pure: every value on the way, both ends included."""
        return (previous, *(step.state for step in self.steps(previous, value)), value)

    def _write_steps(
        self, directory: _Dir, action: Action, steps: tuple[Step, ...], trace: Trace
    ) -> Outcome:
        try:
            for step in steps:
                trace(f"before write {step.file}={step.text}")
                self.write_step(directory, step)
                trace(f"after write {step.file}={step.text}")
        except RefusedError as error:
            return refused(action, self.read_from(directory), error.errno, str(error))
        return Outcome(action=action, applied=self.read_from(directory))


# What every cgroup with the controller has, whatever the kernel was built with.
_ALWAYS = {"cpu": "cpu.weight", "io": "io.stat", "memory": "memory.current"}


class CgroupKnob(StepKnob[Cgroup]):
    """Base of the actuators for cgroup files; implements ``base.Actuator``.

    :param mount: where the hierarchy with the cpu controller is mounted.
    :param hierarchy: its name in ``Target.scope``.
    :param version: which files it has.
    """

    # Files that tell, per version, whether the kernel has the knob.
    files: ClassVar[dict[Literal["v1", "v2"], str]]

    def __init__(self, mount: Path, hierarchy: str, version: Literal["v1", "v2"]) -> None:
        self.mount = mount
        self.hierarchy = hierarchy
        self.version = version

    @abstractmethod
    def read_from(self, cgroup: Cgroup) -> KnobValue:
        """Return the knob's value in an open cgroup; errors as ``Cgroup.read``."""

    def applies_to(self, target: Target) -> bool:
        """Pure: every cgroup."""
        return target.kind is TargetKind.CGROUP

    def open(self, target: Target) -> Cgroup:
        """Return the open cgroup.

        :raises ValueError: it is in another hierarchy.
        """
        if target.scope != self.hierarchy:
            raise ValueError(f"{target.path}: hierarchy {target.scope}, not {self.hierarchy}")
        return Cgroup(self.mount, target)

    def unsupported_reason(self) -> str | None:
        """Return why this host does not have the knob, or ``None``.

        On v2 the root has no such files: any first-level cgroup that has the controller is
        asked, and where there is none yet the kernel gets the benefit of the doubt.
        """
        name = self.files.get(self.version)
        if name is None:
            return f"{self.files['v2']} exists on cgroup v2 only"
        if self.version == "v1":
            missing = not (self.mount / name).exists()
        else:
            controller = name.partition(".")[0]
            if controller not in (self.mount / "cgroup.controllers").read_text().split():
                return f"the {controller} controller is not in {self.mount}"
            has_controller = _ALWAYS[controller]
            children = [p for p in self.mount.iterdir() if (p / has_controller).exists()]
            missing = bool(children) and not any((p / name).exists() for p in children)
        return f"this kernel has no {name} in {self.mount}" if missing else None
