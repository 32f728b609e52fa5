# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The ticks of an agent with the record of what was in force, and what must be true of them.

They come from a simulated loop or from a recording, whose plans are computed again.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
import re

import pytest

from controller.agent.recording import Entry, planner_for, read
from controller.core.decision import ChannelState, IndicatorStatus, LoopReport, PartKind, Plan
from controller.core.in_force import InForce
from controller.core.model import CgroupId, Channel, Knob, Snapshot, Workload
from controller.core.planner import Planner
from controller.core.units import format_cpus

__all__ = ("Seen", "check_lines", "check_parts", "check_quotas", "check_taken", "fresh", "replayed")

_LINE = re.compile(
    r"quota (?:\S+ -> )?(\S+?)(?: as before| by the squeeze before)?, (\S+) gets (\S+)"
)
_RULED_OUT = (ChannelState.SELF, ChannelState.STEAL, ChannelState.NOT_BE)
_MOST_PARTS = 6
_ROUNDED = 0.001


@dataclass(frozen=True, slots=True)
class Seen:
    """A tick: what was in force before and after it, what was measured, and its plan."""

    before: InForce
    record: InForce
    snapshot: Snapshot
    plan: Plan
    workloads: tuple[Workload, ...]

    @property
    def time_ns(self) -> int:
        """When the snapshot was taken, CLOCK_MONOTONIC."""
        return self.plan.time_ns

    @property
    def overwritten(self) -> frozenset[CgroupId]:
        """The cgroups whose quota was not the agent's at the begin of the tick."""
        return frozenset(
            CgroupId(each.target.scope, each.target.id)
            for each in self.snapshot.knobs
            if each.knob is Knob.CPU_QUOTA and each.original is None
        )


def replayed(recording: Path) -> Iterator[Seen]:
    """Yield the ticks of *recording* but the last one, whose outcomes are not recorded."""
    planner: Planner | None = None
    workloads: tuple[Workload, ...] = ()
    last: tuple[InForce, Entry] | None = None
    for entry in read(recording):
        # What a new planner begins with was restored.
        record = InForce() if planner is None or entry.anew else planner.settle(entry.outcomes)
        if last is not None:
            yield Seen(last[0], record, last[1].snapshot, last[1].plan, workloads)
        planner = planner_for(entry, planner, entry.settings)
        workloads = workloads if entry.workloads is None else entry.workloads
        plan = planner.step(entry.snapshot, entry.outcomes)
        assert plan == entry.plan, f"the plan of {plan.time_ns} differs from the recorded one"
        last = record, entry


def check_quotas(
    record: InForce, quotas: Mapping[str, float | None], others: tuple[float | None, ...] = (None,)
) -> None:
    """Check *record* against the *quotas* that the kernel has, in CPUs by workload.

    Those that are not limited have one of *others*.
    """
    known = {each.workload.name: each for each in record.limited}
    for name, each in known.items():
        assert each.cpus == quotas[name], (name, quotas)
        assert each.since_ns <= each.main.changed_ns <= record.time_ns
        assert None not in (each.main.channel, each.main.service), each
    for name in quotas.keys() - known:
        assert quotas[name] in others, (name, quotas)
    total = sum(each.cpus or 0.0 for each in known.values())
    assert record.cpus == (pytest.approx(total) if known else None)


def check_lines(seen: Iterable[Seen]) -> int:
    """Check that lines of the log give what was read back; return how many give a quota."""
    told = 0
    for tick in seen:
        for text in (each.text for each in tick.plan.verdicts):
            found = _LINE.search(text)
            if found:
                # What another program overwrote is not in force in the tick that finds it.
                quotas = {
                    each.workload.name: each.cpus or 0.0
                    for each in tick.before.limited
                    if each.workload.cgroup not in tick.overwritten
                }
                told += 1
                assert found[1] == format_cpus(sum(quotas.values())), text
                assert found[3] == format_cpus(quotas[found[2]]), text
            if "best-effort is not limited" in text:
                assert not tick.before.limited, text
    return told


def check_taken(seen: Iterable[Seen]) -> None:
    """Check that nothing more is taken for a service that suffers from something else."""
    for tick in seen:
        states = {each.channel: each.state for each in tick.plan.demands}
        if states.get(Channel.CPU) not in _RULED_OUT:
            continue
        before = {each.workload.cgroup: each.cpus for each in tick.before.limited}
        for each in tick.record.limited:
            known = before.get(each.workload.cgroup)
            assert known is not None, (tick.time_ns, each)
            assert each.cpus is not None and each.cpus >= known, (tick.time_ns, known, each)


def check_parts(seen: Iterable[Seen]) -> int:
    """Check that parts are those of the evidence; return how many causes have parts."""
    causes = [each for tick in seen for each in tick.plan.causes if each.parts]
    for cause in causes:
        shares = {kind: 0.0 for kind in PartKind}
        for each in cause.parts:
            shares[each.kind] += each.share
        named = sum(shares.values())
        # The evidence leaves out the time of the host. Small parts, and those after the sixth, are
        # not named. Four digits of each are.
        batch = (cause.be_share or 0.0) * (1.0 - shares[PartKind.HOST])
        unnamed = batch - shares[PartKind.BEST_EFFORT]
        assert -_ROUNDED <= unnamed <= 1.0 - named + _ROUNDED, cause
        assert named == pytest.approx(1.0, abs=0.05) or len(cause.parts) == _MOST_PARTS, cause
    return len(causes)


def fresh(plan: Plan, service: str) -> Iterator[LoopReport]:
    """Yield the loops of *service* that have data."""
    for each in plan.loops:
        if each.service == service and each.status is IndicatorStatus.FRESH:
            yield each
