# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Round-robin reading of knob values: a few targets per tick, new ones first.

The knobs of one workload are five files and take 50 to 70 us to read, on a busy host twice that.
Those of a thousand workloads would add 60 ms to a tick, so a tick reads at most four targets that
are known and 32 cgroups that are new. With ticks of 200 ms a round over up to 100 targets takes
5 s, over more of them proportionally longer (1,000: 50 s). A tick after a longer time reads four
for each half second of it, so that rounds go on while ticks are left out. A write does not depend
on these readings: the executor reads the knob first.
"""

from collections.abc import Iterable, Mapping
from itertools import islice

from actuators.executor import Executor
from controller.core.decision import Outcome
from controller.core.model import STRUCTURAL_KNOBS, Knob, KnobReading, Target, TargetKind
from controller.core.units import NS_PER_SEC

__all__ = ("KnobPoller",)

_ROUND_NS = 5 * NS_PER_SEC
_MAX_READS = 4  # targets per tick
_READS_NS = 500_000_000  # so long a time without ticks stands for a tick
_LONGEST_NS = 2 * NS_PER_SEC
_MAX_NEW = 32  # new cgroups per tick

_ByKnob = dict[Knob, KnobReading]


class KnobPoller:
    """Keeps the last readings of the knobs that the agent may write or has written."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._targets: dict[Target, frozenset[Knob]] = {}
        self._queue: list[Target] = []
        self._new: dict[Target, None] = {}  # not read yet
        self._budget = 0.0
        self._polled_ns = 0
        self._readings: dict[Target, _ByKnob] = {}
        self._assumed: dict[Target, _ByKnob] = {}
        self._all: tuple[KnobReading, ...] | None = None

    @property
    def all(self) -> tuple[KnobReading, ...]:
        """Every reading; the same tuple as long as nothing changed."""
        if self._all is None:
            self._all = tuple(each for found in self._readings.values() for each in found.values())
        return self._all

    @property
    def has_unread(self) -> bool:
        """Whether targets wait for their first reading."""
        return bool(self._new)

    def reset(self) -> None:
        """Forget all targets, so that the next ``set_targets`` reads each of them at once.

        For use after a restore, which changes values without ``update``.
        """
        self._targets.clear()
        self._queue.clear()
        self._new.clear()

    def set_targets(
        self, targets: Mapping[Target, frozenset[Knob]], assumed: Iterable[KnobReading] = ()
    ) -> None:
        """Read exactly these knobs of these targets from now on.

        New cgroups are read in the next calls of ``poll``, in the order of *targets*; the first
        ones of all at once. So are cgroups whose knobs are others than before, and all targets that
        are not cgroups, because they may have been made a moment ago. The readings *assumed* are
        used for knobs that do not exist yet: those of links that are not shaped in observe mode.
        """
        before, self._targets = self._targets, dict(targets)
        now = []
        for target, knobs in targets.items():
            # Compared by identity first: mostly the sets are the same object.
            if (known := before.get(target)) is knobs and target.kind is TargetKind.CGROUP:
                continue
            if before and known is None and target.kind is TargetKind.CGROUP:
                self._new[target] = None
            elif known != knobs or target.kind is not TargetKind.CGROUP:
                now.append(target)
        if before.keys() - targets.keys():
            self._queue = [target for target in self._queue if target in targets]
            self._new = {target: None for target in self._new if target in targets}
        self._assumed = {}
        for each in assumed:
            self._assumed.setdefault(each.target, {})[each.knob] = each
        for target in self._readings.keys() - targets.keys() - self._assumed.keys():
            del self._readings[target]
            self._all = None
        for target in self._assumed.keys() - targets.keys():
            self._readings[target] = self._assumed[target]
            self._all = None
        self._read(now)

    def poll(self, now_ns: int) -> None:
        """Read the next new targets, at most 32, and those of the round, at most four per tick."""
        if self._new:
            new = list(islice(self._new, _MAX_NEW))
            for target in new:
                del self._new[target]
            self._read(new)
        elapsed_ns = min(now_ns - self._polled_ns, _LONGEST_NS)
        self._polled_ns = now_ns
        most = max(_MAX_READS, _MAX_READS * elapsed_ns // _READS_NS)
        self._budget = min(most, self._budget + len(self._targets) * elapsed_ns / _ROUND_NS)
        count = min(int(self._budget), len(self._targets))
        self._budget -= count
        if count:
            if len(self._queue) < count:
                self._queue = [*reversed(self._targets), *self._queue]
            self._read([self._queue.pop() for _ in range(count)])

    def update(self, outcomes: Iterable[Outcome]) -> None:
        """Take over the values that were read back after writes."""
        for outcome in outcomes:
            target, knob = outcome.action.target, outcome.action.knob
            found = self._readings.setdefault(target, {})
            if outcome.applied is None:
                found.pop(knob, None)
            else:
                found[knob] = KnobReading(target, knob, outcome.applied, outcome.original)
            self._all = None

    def _read(self, targets: Iterable[Target]) -> None:
        by_knobs: dict[frozenset[Knob], list[Target]] = {}
        for target in targets:
            by_knobs.setdefault(self._targets[target], []).append(target)
        for knobs, group in by_knobs.items():
            found: dict[Target, _ByKnob] = {target: {} for target in group}
            for each in self._executor.read(group, knobs):
                if each.knob not in STRUCTURAL_KNOBS:
                    found[each.target][each.knob] = each
            for target, readings in found.items():
                readings |= self._assumed.get(target, {})
                if self._readings.get(target) != readings:
                    self._readings[target] = readings
                    self._all = None
