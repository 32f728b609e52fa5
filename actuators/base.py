# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The interface of an actuator, its failures, and the report of a restore.

An actuator knows one knob: how to read it, how to write it, and, without touching the kernel,
which intermediate values a write passes through. The functions that are common to all knobs are
in ``executor``: journal, foreign values, back-off, order and roll-back.

Access to a knob fails in one of three ways: *gone* (``GoneError``), *refused*
(``RefusedError``), or *broken*, which is any other exception and is not caught in this package.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Protocol

from controller.core.decision import Action, Failure, Outcome
from controller.core.model import Knob, KnobValue, Target

__all__ = (
    "PENDING",
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

# A callback that gets the name of each step immediately before or after it is executed. Only the
# crash tests pass one, to end the process at that step.
Trace = Callable[[str], None]


def no_trace(_step: str) -> None:
    """Do nothing: the default ``Trace``."""


class GoneError(Exception):
    """The target no longer exists: ENOENT, ESRCH, ENODEV, or another object has its path.

    Expected in normal operation: workloads end at any time.
    """


class RefusedError(Exception):
    """The kernel refused the access: ``errno`` is the reason, the message names file and value."""

    def __init__(self, errno: int, message: str) -> None:
        super().__init__(message)
        self.errno = errno


def gone(action: Action, error: GoneError) -> Outcome:
    """Return the outcome of *action* for a target that no longer exists."""
    return Outcome(action=action, applied=None, failure=Failure.GONE, message=str(error))


def refused(action: Action, applied: KnobValue | None, code: int | None, message: str) -> Outcome:
    """Return the outcome of *action* that the kernel refused; *applied* is the present value."""
    return Outcome(
        action=action, applied=applied, failure=Failure.REFUSED, errno=code, message=message
    )


class Phase(IntEnum):
    """Position of a write within a tick, so that no write is refused only for its order."""

    CREATE = -1  # an object that contains other knobs: before those knobs
    ANY = 0  # accepted at any time, and may make later writes acceptable
    TIGHTEN = 1  # children before parents
    LOOSEN = 2  # parents before children
    DELETE = 3  # an object that contains other knobs: after those knobs, inner objects first


class Actuator(Protocol):
    """One knob of the kernel. Methods marked *pure* access neither files nor the kernel."""

    knob: Knob
    # Whether the kernel refuses values of a target that conflict with those of its ancestors.
    checks_ancestors: bool

    def applies_to(self, target: Target) -> bool:
        """Pure: return whether *target* is of the kind that has this knob."""
        ...

    def unsupported_reason(self) -> str | None:
        """Return why this host lacks the knob at present; ``None`` if it has it. Cheap."""
        ...

    def read(self, target: Target) -> KnobValue:
        """Return the present value of the knob.

        :raises GoneError: the target no longer exists.
        :raises RefusedError: the target has no such knob, or reading is not permitted.
        """
        ...

    def apply(self, action: Action, trace: Trace = no_trace) -> Outcome:
        """Change the knob from ``action.previous``, its present value, to ``action.value``.

        The value is read back after the last write; a value that the kernel rounded counts as
        applied. A refusal may leave the knob at an intermediate value; the caller reverts it.

        :raises ValueError: ``action.value`` is not a value of this knob.
        """
        ...

    def intermediate_values(self, previous: KnobValue, value: KnobValue) -> tuple[KnobValue, ...]:
        """Pure: return the values that the knob has in turn, *previous* and *value* included."""
        ...

    def matches(self, expected: KnobValue, found: KnobValue) -> bool:
        """Return whether *found* is *expected*, or the kernel's own change of it."""
        ...

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: return the position of this write within a tick."""
        ...


class Restored(StrEnum):
    """Result of restoring one journal record."""

    RESTORED = "restored"
    ALREADY = "already"  # the knob had its original value
    GONE = "gone"  # the target no longer exists, and the knob with it
    FOREIGN = "foreign"  # another program wrote the present value: left unchanged
    FAILED = "failed"  # the record is kept, and the next restore tries again
    UNKNOWN = "unknown"  # a damaged record, or one of a newer version: kept, not evaluated


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """Result for one journal record; ``message`` is one line of text for the operator."""

    subject: str
    result: Restored
    message: str


# The results after which the kernel still has a value of ours, or may have one.
PENDING = (Restored.FAILED, Restored.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """Results of all records."""

    results: tuple[RestoreResult, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether the kernel has no more values of ours, according to the journal."""
        return not any(r.result in PENDING for r in self.results)
