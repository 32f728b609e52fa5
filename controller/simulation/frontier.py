# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How the planner compares with the best of the other policies, scenario by scenario.

A policy qualifies where it keeps the objective in nearly all seconds and leaves some work. The
planner's work is compared with that of the best other policy that qualifies, and with that of the
oracle where none does.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
import math

from controller.simulation.model import Scenario
from controller.simulation.policies.registry import ORACLE, OURS, SCHED_IDLE
from controller.simulation.table import Summary

__all__ = ("Verdict", "format_frontier", "frontier", "mean_ratio")

# Seconds above the objective that still count as keeping it, and with a load or culprit that
# changes faster than every 30 s.
_ACCEPTED, _ACCEPTED_RESTLESS = 0.01, 0.02
# A policy with less than this part of sched-idle's work has not solved anything.
_LEAST_WORK = 0.05
# Where sched-idle alone violates less often, there is nothing to win.
_CONTENDED = 0.05


@dataclass(frozen=True, slots=True)
class Verdict:
    """One of the planner's policies in one scenario.

    ``qualifies``: it keeps the objective. ``best`` is the policy that it is compared with, ``None``
    if there is none; ``ratio`` its work by that policy's. ``contended``: sched-idle alone does not
    keep the objective.
    """

    scenario: str
    policy: str
    qualifies: bool
    best: str | None
    ratio: float | None
    contended: bool


def frontier(summaries: Iterable[Summary], scenarios: Mapping[str, Scenario]) -> list[Verdict]:
    """Return a verdict for each of the planner's policies in each scenario."""
    by_scenario: dict[str, dict[str, Summary]] = {}
    for each in summaries:
        by_scenario.setdefault(each.scenario, {})[each.policy] = each
    return [
        _verdict(policy, members, scenarios[scenario].restless)
        for scenario, members in by_scenario.items()
        for policy in members
        if policy.startswith(OURS)
    ]


def _verdict(policy: str, members: Mapping[str, Summary], restless: bool) -> Verdict:
    free = members.get(SCHED_IDLE)
    accepted = _ACCEPTED_RESTLESS if restless else _ACCEPTED

    def qualifies(each: Summary) -> bool:
        least = _LEAST_WORK * free.work_cpus.mean if free else 0.0
        return each.violating.mean <= accepted and each.work_cpus.mean >= least

    others = [
        each for name, each in members.items() if not name.startswith(OURS) and name != ORACLE
    ]
    rivals = [each for each in others if qualifies(each)]
    if not rivals and ORACLE in members:
        rivals = [members[ORACLE]]
    best = max(rivals, key=lambda each: each.work_cpus.mean, default=None)
    own = members[policy]
    ratio = None
    if best is not None and best.work_cpus.mean > 0:
        ratio = own.work_cpus.mean / best.work_cpus.mean
    return Verdict(
        scenario=own.scenario,
        policy=policy,
        qualifies=qualifies(own),
        best=None if best is None else best.policy,
        ratio=ratio,
        contended=free is not None and free.violating.mean > _CONTENDED,
    )


def mean_ratio(verdicts: Iterable[Verdict]) -> float | None:
    """Return the geometric mean of the ratios of policies that qualify.

    Scenarios count in which sched-idle alone does not suffice and another policy qualifies.
    """
    logs = [
        math.log(each.ratio)
        for each in verdicts
        if each.qualifies and each.contended and each.ratio and each.best != ORACLE
    ]
    return math.exp(sum(logs) / len(logs)) if logs else None


def format_frontier(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts as text, with the geometric mean of each of the planner's policies."""
    lines = []
    for each in verdicts:
        kept = "keeps the objective" if each.qualifies else "does not keep the objective"
        against = "no other policy qualifies"
        if each.best is not None and each.ratio is not None:
            against = f"{each.ratio:.2f} of the work of {each.best}"
        lines.append(f"  {each.scenario} {each.policy}: {kept}, {against}")
    for policy in dict.fromkeys(each.policy for each in verdicts):
        own = [each for each in verdicts if each.policy == policy]
        count = sum(each.qualifies for each in own)
        text = f"  {policy}: keeps the objective in {count} of {len(own)} scenarios"
        mean = mean_ratio(own)
        if mean is not None:
            text += f", with {mean:.2f} of the best work where contended (geometric mean)"
        lines.append(text)
    return "\n".join(lines)
