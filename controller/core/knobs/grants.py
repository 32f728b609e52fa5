# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""From amounts granted to best-effort workloads to writes of one knob.

``RequestedLimits`` lowers the grants to the limits that workloads requested themselves, which hold
with and without a squeeze. ``SteadyAmounts`` leaves small changes out of grants that follow
estimates. ``GrantValues`` turns grants into values of a knob.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace

from controller.core.decision import Action
from controller.core.knobs.knob_state import KnobState
from controller.core.limiters import HOLD_NS
from controller.core.model import CgroupId, Knob, KnobValue

__all__ = ("HARDLY_CUT", "NOISE", "OWN_LIMIT", "GrantValues", "RequestedLimits", "SteadyAmounts")

Amounts = Mapping[CgroupId, float]

# What the text of a knob grants; ``None`` or infinity for no limit.
AmountOf = Callable[[KnobValue], float | None]
# The text that grants an amount to a workload whose original value is the second argument.
ValueFor = Callable[[float, KnobValue], KnobValue]

OWN_LIMIT = "the limit that the workload requested"
# A change by less than this part is noise, and is not written.
NOISE = 0.05
# A cut by less than this part is not worth a limit, for a workload that does no harm.
HARDLY_CUT = 0.1


class RequestedLimits:
    """Bounds the grants by the workloads' own limits.

    A workload with a limit of its own and no grant is granted its limit. *reason* is that of the
    writes which set a limit.
    """

    def __init__(self, reason: str = OWN_LIMIT) -> None:
        self._reason = reason
        self._grants: Amounts = {}
        self._limits: Amounts = {}
        self._bounded: Amounts = {}

    def apply(self, grants: Amounts, limits: Amounts) -> Amounts:
        """Return *grants* within *limits*; the same object as long as both are equal to before."""
        if not limits:
            self._limits, self._bounded = limits, grants
            return grants
        if limits is not self._limits or grants != self._grants:
            self._limits, self._grants = limits, grants
            lowered = {each: min(most, grants.get(each, most)) for each, most in limits.items()}
            self._bounded = {**grants, **lowered}
        return self._bounded

    def explain(self, actions: list[Action]) -> list[Action]:
        """Return *actions*, with a reason of its own for each that sets a workload's own limit."""
        return [
            replace(each, reason=self._reason) if self._sets_own(each) else each for each in actions
        ]

    def _sets_own(self, action: Action) -> bool:
        cgroup = action.target.place
        limit = self._limits.get(cgroup)
        return limit is not None and self._bounded.get(cgroup) == limit


# Where amounts follow estimates of harm they move up and down by more than noise. For some time
# after a change only a raise by this part is made, and a cut that is worth one: it is urgent.
_RAISE = 0.25


@dataclass(slots=True)
class SteadyAmounts:
    """Keeps the amount of each workload until another one differs by more than estimates scatter.

    20 s after its last change an amount follows anything but noise, so no workload stays short.
    """

    _amounts: dict[CgroupId, float] = field(default_factory=dict)
    _since_ns: dict[CgroupId, int] = field(default_factory=dict)

    def update(
        self, amounts: Mapping[CgroupId, float], floor: float, now_ns: int
    ) -> dict[CgroupId, float]:
        """Return *amounts*, with the amount of before where it still does.

        A fall to *floor* or below, in the unit of the amounts, is always made.
        """
        before, since_ns = self._amounts, self._since_ns
        self._amounts, self._since_ns = {}, {}
        for cgroup, amount in amounts.items():
            last, then_ns = before.get(cgroup), since_ns.get(cgroup, now_ns)
            if last is None or amount <= floor or _differs(amount, last, now_ns - then_ns):
                last, then_ns = amount, now_ns
            self._amounts[cgroup], self._since_ns[cgroup] = last, then_ns
        return self._amounts


def _differs(amount: float, last: float, age_ns: int) -> bool:
    if age_ns >= HOLD_NS:
        return abs(amount - last) >= NOISE * last
    return amount >= (1 + _RAISE) * last or amount <= (1 - HARDLY_CUT) * last


class GrantValues:
    """Turns grants into the values of one knob.

    *largest* is the largest change, in the knob's unit, that may be left unwritten.
    """

    def __init__(
        self, knob: Knob, amount_of: AmountOf, value_for: ValueFor, largest: float = float("inf")
    ) -> None:
        self._knob = knob
        self._amount_of = amount_of
        self._value_for = value_for
        self._largest = largest
        # In a tick without a change no workload has to be examined.
        self._granted: Amounts = {}

    def changes(
        self,
        grants: Amounts,
        floor: float,
        eligible: Container[CgroupId],
        knobs: KnobState,
        resync: bool,
    ) -> list[tuple[CgroupId, KnobValue | None]]:
        """Return the values that put *grants* into force, for ``KnobState.limit``.

        A cgroup that is not in *grants* gets its original value back; one that is not *eligible* is
        not written. On *resync* every knob that was written is compared, because another program
        may have changed it. A change that is noise is not written, unless it reaches *floor*, in
        the knob's unit.
        """
        before, self._granted = self._granted, grants
        if grants is before and not resync:
            return []
        values: list[tuple[CgroupId, KnobValue | None]] = []
        # Workloads that were limited before are included, because they may have to be released.
        touched = dict.fromkeys(knobs.touched(self._knob)) if resync else {}
        for cgroup in {**before, **grants, **touched}:
            key = (*cgroup, self._knob)
            original, current = knobs.original(*key), knobs.value(*key)
            if cgroup not in eligible or original is None or current is None:
                continue
            amount, value = grants.get(cgroup), None
            if amount is not None:
                now = None if current == original else self._amount_of(current)
                if now is not None and not self._matters(amount, now, floor):
                    continue
                value = self._value_for(amount, original)
            values.append((cgroup, value))
        return values

    def _matters(self, amount: float, now: float, floor: float) -> bool:
        """Whether *amount* differs from *now* by more than noise, or goes down to the floor."""
        noise = min(self._largest, NOISE * now)
        # A knob rounds amounts to its whole units.
        return abs(amount - now) >= noise or amount <= floor < now * (1 - 1e-3)
