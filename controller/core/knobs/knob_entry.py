# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One knob of one target: its value, the original, and what other programs wrote over ours.

A value of ours that another program overwrote is applied again only if it is stricter than the
foreign one, at most three times in ten minutes; after that the knob of this target is unavailable.

The exception is the routine of kubelet, its runtime and systemd (``is_routine``). Our value is then
applied again at most every ten seconds, without an end, and reported once. Any other foreign value
in such a cgroup, such as that of an administrator, is treated as above.
"""

from dataclasses import dataclass
from typing import NamedTuple

from controller.core.decision import Action, Outcome
from controller.core.in_force import HeldKnob
from controller.core.knob_comparison import is_routine, is_stricter
from controller.core.model import Knob, KnobReading, KnobValue, Target
from controller.core.units import NS_PER_SEC

__all__ = ("KEEP_NS", "KnobEntry", "Reapply")

# So long it counts that a value was applied again.
KEEP_NS = 600 * NS_PER_SEC
# kubelet writes its QoS levels once a minute.
_ROUTINE_NS = 10 * NS_PER_SEC


class Reapply(NamedTuple):
    """Whether our value may be written over a foreign one.

    ``report`` is to be told, unless it is empty. ``due_ns`` is when to ask again; 0: time alone
    changes nothing.
    """

    allowed: bool
    report: str = ""
    due_ns: int = 0


@dataclass(slots=True)
class KnobEntry:
    """One knob of one target.

    ``first`` is the original when the planner began to request values.
    ``reading`` is the last one and ``value`` the value in force: as read, or as requested since.
    ``requested`` is the value that the planner wants (``None``: the original). ``overwritten``: a
    foreign value replaced a requested one, which was not applied again; ``routine``: that value was
    the first, in a cgroup of kubelet or systemd; ``repeated_ns``: when a value was applied again
    after that, 0 for never; ``reapplied_ns``: when after other ones, within ten minutes.
    ``unavailable``: values were overwritten too often. ``absent``: there is no reading.
    ``retry_ns``: no write before. ``held`` is the knob as the record has it; ``None``: no value of
    ours is in force.
    """

    reading: KnobReading
    value: KnobValue
    first: KnobValue
    requested: KnobValue | None = None
    overwritten: bool = False
    routine: bool = False
    repeated_ns: int = 0
    reapplied_ns: tuple[int, ...] = ()
    unavailable: bool = False
    absent: bool = False
    retry_ns: int = 0
    held: HeldKnob | None = None

    @property
    def target(self) -> Target:
        """The target of the knob."""
        return self.reading.target

    @property
    def knob(self) -> Knob:
        """The knob."""
        return self.reading.knob

    @property
    def original(self) -> KnobValue:
        """The value that a restore puts back."""
        return self.reading.value if self.reading.original is None else self.reading.original

    @property
    def is_ours(self) -> bool:
        """Whether it has a value of ours."""
        return not self.absent and self.value != self.original

    @property
    def touched(self) -> bool:
        """Whether the agent changed the knob, also if it was overwritten since."""
        return self.requested is not None or self.overwritten

    def movable(self, now_ns: int) -> bool:
        """Whether a write may be tried."""
        return not self.absent and not self.unavailable and now_ns >= self.retry_ns

    def write(self, value: KnobValue, reason: str, requested: KnobValue | None) -> Action:
        """Return the action that writes *value*, and take it as written.

        That is assumed until an outcome shows the contrary. In observe mode there are no outcomes,
        so the assumption stays.
        """
        action = Action(
            target=self.target, knob=self.knob, previous=self.value, value=value, reason=reason
        )
        self.value = value
        self.requested = requested
        return action

    def settle(self, outcome: Outcome) -> None:
        """Take the *outcome* of the last write."""
        action, original = outcome.action, outcome.original
        if outcome.foreign is not None:
            self.reading = self.reading._replace(value=outcome.foreign, original=None)
            self._take_foreign(outcome.foreign)
        elif outcome.failure is None:
            self.value = outcome.applied or action.value
            self.reading = self.reading._replace(value=self.value, original=original)
            if original is None:  # the requested value is the original one
                self.requested = None
            self.retry_ns = 0
        else:
            value = outcome.applied or action.previous
            self.reading = self.reading._replace(value=value, original=original)
            self.take_back()
            self.retry_ns = outcome.retry_ns

    def take_back(self) -> None:
        """Take the last write as not made.

        A value of ours is in force then only if the knob was held before.
        """
        self.value = self.reading.value
        self.requested = None if self.reading.original is None else self.value

    def read(self, reading: KnobReading, executed: bool) -> bool:
        """Take a *reading*; return whether it shows a value that nobody requested here.

        Without *executed* (observe mode) no value was written.
        """
        before, self.reading = self.reading, reading
        if executed:
            is_foreign = reading.original is None and self.requested is not None
        else:
            is_foreign = reading.value != before.value
        if is_foreign:
            self._take_foreign(reading.value)
            return True
        changed = executed and reading.value != self.value
        if changed:
            self.value = reading.value
        return changed

    def _take_foreign(self, value: KnobValue) -> None:
        """Take a *value* of another program; it becomes the original."""
        if self.requested is not None:
            self.overwritten = True
            self.routine = is_routine(self.target, value, self.first)
        self.value = value
        self.requested = None

    def reapply(self, value: KnobValue, now_ns: int) -> Reapply:
        """Return whether *value* may be written over the foreign one now; if so, count that."""
        if self.routine:
            return self._repeat(now_ns)
        if not is_stricter(self.knob, value, self.original):
            return Reapply(False)
        times = tuple(each for each in self.reapplied_ns if each > now_ns - KEEP_NS)
        self.reapplied_ns = times
        if len(times) >= 3:
            self.unavailable = True
            return Reapply(
                False,
                f"{self.knob} of {self.target.path} was overwritten by another program "
                f"{len(times) + 1} times in 10 minutes, last with {self.original!r}: "
                "it is not written any more",
            )
        self.reapplied_ns += (now_ns,)
        self.overwritten = False
        return Reapply(True)

    def _repeat(self, now_ns: int) -> Reapply:
        due_ns = self.repeated_ns + _ROUTINE_NS
        report = ""
        if not self.repeated_ns:
            report = (
                f"kubelet or systemd puts {self.knob} of {self.target.path} back to "
                f"{self.original!r}: it is applied again whenever that happens"
            )
        elif now_ns < due_ns:
            return Reapply(False, due_ns=due_ns)
        self.repeated_ns = now_ns
        self.overwritten = False
        return Reapply(True, report)
