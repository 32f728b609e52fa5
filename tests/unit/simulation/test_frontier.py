# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterable

import pytest

from controller.simulation.frontier import Verdict, format_frontier, frontier, mean_ratio
from controller.simulation.scenarios import SCENARIOS
from controller.simulation.table import Estimate, Summary


def make_summary(policy: str, violating: float, work: float, scenario: str = "smt") -> Summary:
    def exactly(value: float) -> Estimate:
        return Estimate(value, value, value)

    return Summary(
        scenario=scenario,
        policy=policy,
        seeds=1,
        violating=exactly(violating),
        work_cpus=exactly(work),
        writes_per_min=exactly(0.0),
        right=None,
        evicted=0,
        wrongly_evicted=0,
        job_work_cpus=(work,),
    )


def judge(*summaries: Summary) -> Verdict:
    (verdict,) = frontier(summaries, SCENARIOS)
    return verdict


FREE = make_summary("sched-idle", 0.6, 8.0)


def test_the_best_other_policy_that_keeps_the_objective_counts() -> None:
    verdict = judge(
        FREE,
        make_summary("koordinator", 0.0, 4.0),
        make_summary("parties", 0.01, 5.0),
        make_summary("heracles", 0.05, 7.0),
        make_summary("sweetpoint", 0.0, 6.0),
    )
    assert (verdict.best, verdict.ratio) == ("parties", 1.2)
    assert verdict.qualifies and verdict.contended


def test_a_policy_without_work_does_not_count() -> None:
    verdict = judge(FREE, make_summary("heracles", 0.0, 0.3), make_summary("sweetpoint", 0.0, 0.39))
    assert verdict.best is None
    assert not verdict.qualifies


def test_the_oracle_counts_where_no_other_policy_does() -> None:
    oracle, ours = make_summary("oracle", 0.3, 5.0), make_summary("sweetpoint", 0.3, 4.0)
    assert judge(FREE, oracle, ours).ratio == 0.8
    other = make_summary("parties", 0.0, 2.0)
    assert judge(FREE, oracle, other, ours).best == "parties"


@pytest.mark.parametrize("scenario, qualifies", [("smt", False), ("square", True)])
def test_restless_scenarios_may_violate_more(scenario: str, qualifies: bool) -> None:
    assert judge(make_summary("sweetpoint", 0.02, 4.0, scenario)).qualifies is qualifies


def test_the_mean_is_geometric_and_of_contended_scenarios_where_it_qualifies() -> None:
    def verdicts() -> Iterable[Verdict]:
        for ratio, contended, best in (
            (2.0, True, "parties"),
            (0.5, True, "parties"),
            (9.0, False, "parties"),
            (0.1, True, "oracle"),
        ):
            yield Verdict("smt", "sweetpoint", True, best, ratio, contended)
        yield Verdict("smt", "sweetpoint", False, "parties", 7.0, True)

    assert mean_ratio(verdicts()) == pytest.approx(1.0)
    assert format_frontier(list(verdicts())).splitlines()[-1] == (
        "  sweetpoint: keeps the objective in 4 of 5 scenarios, "
        "with 1.00 of the best work where contended (geometric mean)"
    )
