# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a rollout has decided so far, as it stands in its ConfigMap."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
import json
import math

__all__ = (
    "STATE_KEY",
    "Condition",
    "Phase",
    "State",
    "StateError",
    "enter",
    "note",
    "read",
    "text",
)

STATE_KEY = "status.json"
_MAX_CHARS = 16 << 10


class Phase(StrEnum):
    """Where a rollout stands; the last two are ends."""

    PENDING = "Pending"
    CANARY = "Canary"
    SOAKING = "Soaking"
    PROMOTED = "Promoted"
    ROLLED_BACK = "RolledBack"

    @property
    def is_end(self) -> bool:
        """Whether only another candidate leads on."""
        return self in (Phase.PROMOTED, Phase.ROLLED_BACK)


class StateError(Exception):
    """The stored state cannot be read; only a person can say what was decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition in the form of Kubernetes; ``changed`` is its lastTransitionTime."""

    type: str
    status: str
    reason: str
    message: str
    changed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of the rollout of the proposal ``digest``.

    ``since_s`` is when the phase began, ``canary_since_s`` when figures began to count, in seconds
    since 1970. ``in_phase_s`` is for how long a controller has watched the phase. ``applied``: what
    the end asks for was written. ``nodes`` has the number of canary nodes by verdict.
    """

    digest: str
    phase: Phase
    since_s: float
    canary_since_s: float = 0.0
    in_phase_s: float = 0.0
    applied: bool = False
    nodes: Mapping[str, int] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()


def enter(state: State, phase: Phase, now_s: float, reason: str, message: str) -> State:
    """Return *state* in *phase* since *now_s*."""
    moved = replace(state, phase=phase, since_s=now_s, in_phase_s=0.0)
    return note(moved, now_s, reason, message)


def note(state: State, now_s: float, reason: str, message: str) -> State:
    """Return *state* with conditions that say *reason* and *message*."""
    promoted = "Unknown"
    if state.phase.is_end and state.applied:
        promoted = str(state.phase is Phase.PROMOTED)
    wanted = {"Progressing": str(not state.applied), "Promoted": promoted}
    before = {each.type: each for each in state.conditions}
    now = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    found = []
    for kind, status in wanted.items():
        old = before.get(kind)
        same = old is not None and old.status == status
        changed = old.changed if old is not None and same else now
        found.append(
            Condition(type=kind, status=status, reason=reason, message=message, changed=changed)
        )
    return replace(state, conditions=tuple(found))


def text(state: State) -> str:
    """Return *state* as JSON."""
    conditions = [
        {
            "type": each.type,
            "status": each.status,
            "reason": each.reason,
            "message": each.message,
            "lastTransitionTime": each.changed,
        }
        for each in state.conditions
    ]
    fields = {
        "phase": state.phase,
        "conditions": conditions,
        "nodes": dict(state.nodes),
        "applied": state.applied,
        "since_s": state.since_s,
        "canary_since_s": state.canary_since_s,
        "in_phase_s": state.in_phase_s,
        "digest": state.digest,
    }
    return json.dumps(fields, indent=1)


def read(found: str) -> State:
    """Return the state of the text *found*.

    :raises StateError: it is not one.
    """
    if len(found) > _MAX_CHARS:
        raise StateError(f"{STATE_KEY} is longer than {_MAX_CHARS} characters")
    try:
        fields = json.loads(found)
        conditions = tuple(
            Condition(
                **{key: str(each[key]) for key in ("type", "status", "reason", "message")},
                changed=str(each["lastTransitionTime"]),
            )
            for each in fields["conditions"]
        )
        times = {key: _time_s(fields[key]) for key in ("since_s", "canary_since_s", "in_phase_s")}
        return State(
            digest=str(fields["digest"]),
            phase=Phase(fields["phase"]),
            applied=fields["applied"] is True,
            nodes={str(key): int(value) for key, value in fields["nodes"].items()},
            conditions=conditions,
            **times,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        text = f"{STATE_KEY} is damaged: remove it, and the rollout begins again"
        raise StateError(text) from None


def _time_s(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("not a time")
    return float(value)
