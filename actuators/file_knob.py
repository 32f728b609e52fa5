# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Base classes of knobs that consist of files: ``StepKnob``, and ``CgroupKnob`` for cgroups.

A knob may be spread over several files that the kernel checks against each other. The pure method
``steps`` returns the writes in their order and the value of the knob after each of them. By these
values a restoring process recognises a knob whose writer died between two writes.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Generic, Literal, NamedTuple, TypeVar

from actuators.base import GoneError, Phase, RefusedError, Trace, gone, no_trace, refused
from actuators.kernfs import Cgroup, Directory
from controller.core.decision import Action, Outcome
from controller.core.model import Knob, KnobValue, Target, TargetKind
from controller.host.odd_rows import report_odd

__all__ = (
    "CgroupKnob",
    "Step",
    "StepKnob",
)

_Dir = TypeVar("_Dir", bound=Directory)


class Step(NamedTuple):
    """One write of *text* to *file*; *state* is the value of the knob after an accepted write."""

    file: str
    text: str
    state: KnobValue


class StepKnob(ABC, Generic[_Dir]):
    """Base of the actuators whose files are in one directory; implements ``base.Actuator``."""

    knob: Knob

    checks_ancestors = False

    @abstractmethod
    def applies_to(self, target: Target) -> bool:
        """Pure: return whether *target* is of the kind that has this knob."""

    @abstractmethod
    def unsupported_reason(self) -> str | None:
        """Return why this host lacks the knob at present, or ``None``."""

    @abstractmethod
    def open(self, target: Target) -> _Dir:
        """Return the open directory of *target*; errors as ``kernfs.Directory``."""

    @abstractmethod
    def steps(self, previous: KnobValue, value: KnobValue) -> tuple[Step, ...]:
        """Pure: return the writes from *previous* to *value*; none if they are equal.

        :raises ValueError: *previous* or *value* is not a value of this knob.
        """

    @abstractmethod
    def read_from(self, directory: _Dir) -> KnobValue:
        """Return the value of the knob in an open directory; errors as ``Directory.read``."""

    @abstractmethod
    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: return the position of this write within a tick."""

    def write_step(self, directory: _Dir, step: Step) -> None:
        """Carry out one step; errors as ``Directory.write``."""
        directory.write(step.file, step.text)

    def matches(self, expected: KnobValue, found: KnobValue) -> bool:
        """Return whether the values are equal; subclasses add changes by the kernel."""
        return expected == found

    def read(self, target: Target) -> KnobValue:
        """Return the present value of the knob; errors as ``base.Actuator.read``."""
        with self.open(target) as directory:
            return self.read_checked(directory)

    def read_checked(self, directory: _Dir) -> KnobValue:
        """Return ``read_from``; a text that is no value of the knob counts as a refusal.

        :raises RefusedError: also for such a text, which is reported.
        """
        try:
            return self.read_from(directory)
        except ValueError as error:
            report_odd(self.knob, error)
            raise RefusedError(0, f"{directory.path}: {self.knob}: {error}") from None

    def apply(self, action: Action, trace: Trace = no_trace) -> Outcome:
        """Carry out the steps of *action* and read back; see ``base.Actuator.apply``."""
        steps = self.steps(action.previous, action.value)
        try:
            with self.open(action.target) as directory:
                return self._write_steps(directory, action, steps, trace)
        except GoneError as error:
            return gone(action, error)
        except RefusedError as error:
            return refused(action, None, error.errno, str(error))

    def intermediate_values(self, previous: KnobValue, value: KnobValue) -> tuple[KnobValue, ...]:
        """Pure: return *previous*, the value after each step, and *value*."""
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
            return refused(action, self.read_checked(directory), error.errno, str(error))
        return Outcome(action=action, applied=self.read_checked(directory))


# By controller, a file that a cgroup with that controller has in every kernel configuration.
_PERMANENT_FILES = {
    "cpu": "cpu.weight",
    "cpuset": "cpuset.cpus",
    "io": "io.stat",
    "memory": "memory.current",
}


class CgroupKnob(StepKnob[Cgroup]):
    """Base of the actuators for cgroup files; implements ``base.Actuator``.

    :param mount: the mount point of the hierarchy.
    :param hierarchy: the name of the hierarchy in ``Target.scope``.
    :param version: the cgroup version, which decides about names and formats of files.
    """

    # By version, a file that exists if the kernel has the knob.
    files: ClassVar[dict[Literal["v1", "v2"], str]]

    def __init__(self, mount: Path, hierarchy: str, version: Literal["v1", "v2"]) -> None:
        self.mount = mount
        self.hierarchy = hierarchy
        self.version = version

    @abstractmethod
    def read_from(self, cgroup: Cgroup) -> KnobValue:
        """Return the value of the knob in an open cgroup; errors as ``Cgroup.read``."""

    def applies_to(self, target: Target) -> bool:
        """Pure: return whether *target* is a cgroup of this hierarchy."""
        return target.kind is TargetKind.CGROUP and target.scope == self.hierarchy

    def open(self, target: Target) -> Cgroup:
        """Return the open cgroup, also if it was renamed.

        :raises ValueError: *target* is in another hierarchy.
        """
        if target.scope != self.hierarchy:
            raise ValueError(f"{target.path}: hierarchy {target.scope}, not {self.hierarchy}")
        return Cgroup(self.mount, target, renamed=True)

    def unsupported_reason(self) -> str | None:
        """Return why this host lacks the knob, or ``None``.

        On v2 the root has no such files, so the first-level cgroups with the controller are
        examined. If there is none, the knob is assumed to be supported.
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
            has_controller = _PERMANENT_FILES[controller]
            children = [p for p in self.mount.iterdir() if (p / has_controller).exists()]
            missing = bool(children) and not any((p / name).exists() for p in children)
        return f"this kernel has no {name} in {self.mount}" if missing else None
