# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What every actuator offers, and the two ways in which touching a knob may fail.

An actuator knows one knob: how to read it, how to write it, and (purely) which values it
passes through on the way. What is the same for all knobs lives in ``executor``: journal,
foreign values, back-off, order and roll-back. A third kind of failure, *broken*, is any other
exception; nobody catches it here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Protocol

from controller.core.decision import Action, Failure, Outcome
from controller.core.model import Knob, KnobValue, Target

__all__ = (
    "Actuator",
    "GoneError",
    "Phase",
    "RefusedError",
    "RestoreReport",
    "RestoreResult",
    "Restored",
    "Trace",
    "gone",
    "no_trace",
    "refused",
)

# Called with the name of each step that is about to be done or was just done. Only the crash
# tests pass one, to stop the process there.
Trace = Callable[[str], None]


def no_trace(_step: str) -> None:
    """Do nothing: the ``Trace`` of normal operation."""


class GoneError(Exception):
    """The target left (ENOENT, ESRCH, ENODEV, or another object took its path). Normal."""


class RefusedError(Exception):
    """The kernel said no; ``errno`` is its reason, the message names file and value."""

    def __init__(self, errno: int, message: str) -> None:
        super().__init__(message)
        self.errno = errno


def gone(action: Action, error: GoneError) -> Outcome:
    """Return what becomes of *action* when its target left."""
    return Outcome(action=action, applied=None, failure=Failure.GONE, message=str(error))


def refused(action: Action, applied: KnobValue | None, code: int | None, message: str) -> Outcome:
    """Return what becomes of *action* when the kernel said no; *applied* is what there is now."""
    return Outcome(
        action=action, applied=applied, failure=Failure.REFUSED, errno=code, message=message
    )


class Phase(IntEnum):
    """When in a tick a write is made, so that none is refused for coming too early."""

    CREATE = -1  # an object that other knobs live in: before them
    ANY = 0  # accepted at any time, and may make room for others
    TIGHTEN = 1  # children before parents
    LOOSEN = 2  # parents before children
    DELETE = 3  # such an object again: after them, inner objects first


class Actuator(Protocol):
    """One knob of the kernel. The methods marked pure touch no file."""

    knob: Knob
    # Whether the kernel refuses values of a target that do not fit those of its ancestors.
    checks_ancestors: bool

    def applies_to(self, target: Target) -> bool:
        """Pure: whether *target* is of the kind that has this knob."""
        ...

    def unsupported_reason(self) -> str | None:
        """Return why this host does not have the knob now, or ``None`` if it has it. Cheap."""
        ...

    def read(self, target: Target) -> KnobValue:
        """Return the knob's value now.

        :raises GoneError: the target left.
        :raises RefusedError: the target has no such knob, or reading it is not allowed.
        """
        ...

    def apply(self, action: Action, trace: Trace = no_trace) -> Outcome:
        """Bring the knob from ``action.previous``, its value now, to ``action.value``.

        Reads back after the last write; a value that the kernel rounded counts as applied.
        A refusal leaves the knob between the two values; going back is the caller's part.

        :raises ValueError: ``action.value`` is not a value of this knob.
        """
        ...

    def intermediate_values(self, previous: KnobValue, value: KnobValue) -> tuple[KnobValue, ...]:
        """Pure: every value the knob has in turn on the way, both ends included."""
        ...

    def matches(self, expected: KnobValue, found: KnobValue) -> bool:
        """Pure: whether *found* is *expected*, or what the kernel makes of it by itself."""
        ...

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: when in a tick this write is made."""
        ...


class Restored(StrEnum):
    """What became of one journal record."""

    RESTORED = "restored"
    ALREADY = "already"  # the knob had its original value
    GONE = "gone"  # the target left and took the knob with it
    FOREIGN = "foreign"  # somebody else owns the value now: left alone
    FAILED = "failed"  # the record stays, the next restore tries again
    UNKNOWN = "unknown"  # a record of a newer version: kept, not touched


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """One journal record after a restore; ``message`` is one line for people."""

    subject: str
    result: Restored
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """All records of a restore, and the journal files that could not be read."""

    results: tuple[RestoreResult, ...] = ()
    unreadable: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether nothing of ours is left in the kernel, as far as the journal knows."""
        left = (Restored.FAILED, Restored.UNKNOWN)
        return not self.unreadable and not any(r.result in left for r in self.results)
