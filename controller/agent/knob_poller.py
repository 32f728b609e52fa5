# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What every knob is set to, as last read back: what is new at once, the rest in turn.

Reading the knobs of one workload takes five files and 50 to 70 us. All of a thousand in one tick
would make that one 60 ms long, so only a few are read in each: with ticks of 200 ms everybody
within 5 s, with more than 100 in proportionally longer, a thousand within 50 s. A write of ours
looks at what is there first anyway.
"""

from collections.abc import Iterable, Mapping

from actuators.executor import Executor
from controller.core.decision import Outcome
from controller.core.model import STRUCTURAL_KNOBS, Knob, KnobReading, Target, TargetKind
from controller.core.units import NS_PER_SEC

__all__ = ("KnobPoller",)

_ROUND_NS = 5 * NS_PER_SEC
_PER_LOOK = 4

_ByKnob = dict[Knob, KnobReading]


class KnobPoller:
    """Follows the knobs that we may move or have moved."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._wanted: dict[Target, frozenset[Knob]] = {}
        self._turn: list[Target] = []
        self._due = 0.0
        self._last_ns = 0
        self._found: dict[Target, _ByKnob] = {}
        self._pretended: dict[Target, _ByKnob] = {}
        self._all: tuple[KnobReading, ...] | None = None

    @property
    def all(self) -> tuple[KnobReading, ...]:
        """Every reading; the same tuple as long as nothing changed."""
        if self._all is None:
            self._all = tuple(each for found in self._found.values() for each in found.values())
        return self._all

    def reset(self) -> None:
        """Begin anew: values were changed past us."""
        self._wanted.clear()
        self._turn.clear()

    def set_targets(
        self, wanted: Mapping[Target, frozenset[Knob]], pretended: Iterable[KnobReading] = ()
    ) -> None:
        """Read these knobs from now on, and no others.

        What is new is read at once; so is whatever is no cgroup, because it may just have been
        made. The readings *pretended* stand for what is not there to be read.
        """
        before, self._wanted = self._wanted, dict(wanted)
        new = [
            target
            for target, knobs in wanted.items()
            # Mostly they are the same object.
            if ((had := before.get(target)) is not knobs and had != knobs)
            or target.kind is not TargetKind.CGROUP
        ]
        if before.keys() - wanted.keys():
            self._turn = [target for target in self._turn if target in wanted]
        self._pretended = {}
        for each in pretended:
            self._pretended.setdefault(each.target, {})[each.knob] = each
        for target in self._found.keys() - wanted.keys() - self._pretended.keys():
            del self._found[target]
            self._all = None
        for target in self._pretended.keys() - wanted.keys():
            self._found[target] = self._pretended[target]
            self._all = None
        self._read(new)

    def poll(self, now_ns: int) -> None:
        """Read back those whose turn it is."""
        elapsed_ns = min(now_ns - self._last_ns, NS_PER_SEC)
        self._last_ns = now_ns
        self._due = min(_PER_LOOK, self._due + len(self._wanted) * elapsed_ns / _ROUND_NS)
        count = min(int(self._due), len(self._wanted))
        self._due -= count
        if count:
            if len(self._turn) < count:
                self._turn = [*reversed(self._wanted), *self._turn]
            self._read([self._turn.pop() for _ in range(count)])

    def update(self, outcomes: Iterable[Outcome]) -> None:
        """Take what was read back after writes."""
        for outcome in outcomes:
            target, knob = outcome.action.target, outcome.action.knob
            found = self._found.setdefault(target, {})
            if outcome.applied is None:
                found.pop(knob, None)
            else:
                found[knob] = KnobReading(target, knob, outcome.applied)
            self._all = None

    def _read(self, targets: Iterable[Target]) -> None:
        by_knobs: dict[frozenset[Knob], list[Target]] = {}
        for target in targets:
            by_knobs.setdefault(self._wanted[target], []).append(target)
        for knobs, group in by_knobs.items():
            found: dict[Target, _ByKnob] = {target: {} for target in group}
            for each in self._executor.read(group, knobs):
                if each.knob not in STRUCTURAL_KNOBS:
                    found[each.target][each.knob] = each
            for target, readings in found.items():
                readings |= self._pretended.get(target, {})
                if self._found.get(target) != readings:
                    self._found[target] = readings
                    self._all = None
