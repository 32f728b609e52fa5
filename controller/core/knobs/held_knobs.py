# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the record of what is in force: from plans, outcomes of their writes, and readings."""

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from controller.core.decision import Action, Demand, Failure, Outcome, Plan
from controller.core.in_force import CHANNELS, HeldKnob, InForce, Place, in_force
from controller.core.knobs.knob_state import KnobState
from controller.core.model import Channel, Knob, KnobValue
from controller.core.workload_index import WorkloadIndex

__all__ = ("HeldKnobs",)

# A knob that was held before this planner was made.
_BEFORE = "held before the agent started to plan"


class HeldKnobs:
    """The knobs that the agent holds; in observe mode those that it would hold.

    A plan is taken with ``commit`` and comes into force with ``settle``.
    """

    __slots__ = ("_executed", "_held", "_index", "_pending", "_record", "_time_ns", "_why")

    def __init__(self) -> None:
        self._held: dict[Place, HeldKnob] = {}
        self._pending: Plan | None = None
        self._executed = False
        # The demand behind each action of the plan, by reason.
        self._why: Mapping[str, Demand] = {}
        self._index: WorkloadIndex | None = None
        self._record: InForce | None = None
        self._time_ns = 0

    def reset(self) -> None:
        """Forget everything (the mode changed, which restored every knob)."""
        self._held.clear()
        self._pending = self._record = None

    def commit(
        self,
        plan: Plan,
        why: Mapping[str, Demand],
        index: WorkloadIndex,
        executed: bool,
    ) -> None:
        """Take a plan; *why* maps reasons of its actions to the demands behind them.

        Only best-effort workloads of *index* can be limited. Not *executed*: in observe mode each
        action counts as written.
        """
        self._pending, self._why, self._executed = plan, why, executed
        self._set_index(index)

    def settle(self, outcomes: Iterable[Outcome]) -> InForce:
        """Take the *outcomes* of the last plan, unless they were taken, and return the record."""
        plan, self._pending = self._pending, None
        if plan is not None:
            now_ns = plan.time_ns
            kept = set()
            if self._executed:
                for outcome in outcomes:
                    self._take(outcome, now_ns)
                    kept.add(_place(outcome.action))
            else:
                for action in plan.actions:
                    self._assume(action, now_ns)
            if plan.released:
                self._keep(kept)
            self._time_ns = now_ns
        return self._current()

    def compare(self, knobs: KnobState, now_ns: int) -> None:
        """Take what *knobs* has, after readings that differ from what was written."""
        before, self._held = self._held, {}
        for target, knob, value, original in knobs.held_values():
            place = target.scope, target.id, knob
            known = before.get(place)
            if known is None:
                known = HeldKnob(target, knob, value, original, now_ns, now_ns, _BEFORE)
            elif (known.value, known.original) != (value, original):
                known = known._replace(value=value, original=original, changed_ns=now_ns)
            self._held[place] = known
        if self._held != before:
            self._record = None

    def record(self, now_ns: int, index: WorkloadIndex) -> InForce:
        """Return what is in force at *now_ns* for the best-effort workloads of *index*."""
        self._set_index(index)
        self._time_ns = now_ns
        return self._current()

    def _set_index(self, index: WorkloadIndex) -> None:
        known, self._index = self._index, index
        same = known is not None and known.best_effort is index.best_effort
        if known is None or not same or known.paused is not index.paused:
            self._record = None

    def _current(self) -> InForce:
        if self._record is None:
            knobs = tuple(self._held.values())
            index = self._index
            best_effort, paused = (index.best_effort, index.paused) if index else ({}, {})
            self._record = in_force(self._time_ns, knobs, best_effort, paused)
        elif self._record.time_ns != self._time_ns:
            self._record = replace(self._record, time_ns=self._time_ns)
        return self._record

    def _take(self, outcome: Outcome, now_ns: int) -> None:
        action = outcome.action
        is_lost = outcome.foreign is not None or outcome.failure is Failure.GONE
        if is_lost or outcome.original is None:  # without one it is in place
            self._drop(action)
        elif outcome.failure is None:
            self._hold(action, outcome.applied or action.value, outcome.original, now_ns)
        elif (known := self._held.get(_place(action))) is not None:
            # Refused: the value of before is in force, or what the kernel made of it.
            value = outcome.applied or known.value
            if known.value != value:
                self._put(known._replace(value=value, changed_ns=now_ns))

    def _assume(self, action: Action, now_ns: int) -> None:
        known = self._held.get(_place(action))
        original = action.previous if known is None else known.original
        if action.value == original:
            self._drop(action)
        else:
            self._hold(action, action.value, original, now_ns)

    def _hold(self, action: Action, value: KnobValue, original: KnobValue, now_ns: int) -> None:
        known = self._held.get(_place(action))
        demand = self._why.get(action.reason)
        self._put(
            HeldKnob(
                target=action.target,
                knob=action.knob,
                value=value,
                original=original,
                since_ns=now_ns if known is None else known.since_ns,
                changed_ns=now_ns,
                reason=action.reason,
                channel=_channel(action.knob) if demand is None else demand.channel,
                service=None if demand is None else demand.service,
                indicator=None if demand is None else demand.indicator,
            )
        )

    def _put(self, held: HeldKnob) -> None:
        self._held[held.place] = held
        self._record = None

    def _drop(self, action: Action) -> None:
        if self._held.pop(_place(action), None) is not None:
            self._record = None

    def _keep(self, kept: Set[Place]) -> None:
        """Drop all but *kept*: everything is paused, and the rest went with kernel objects."""
        if self._held.keys() - kept:
            self._held = {place: each for place, each in self._held.items() if place in kept}
            self._record = None


def _channel(knob: Knob) -> Channel | None:
    """Return the channel of *knob* if there is only one."""
    channels = CHANNELS.get(knob, ())
    return channels[0] if len(channels) == 1 else None


def _place(action: Action) -> Place:
    return action.target.scope, action.target.id, action.knob
