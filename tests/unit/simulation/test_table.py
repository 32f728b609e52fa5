# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from controller.simulation.run import Run, Second
from controller.simulation.table import format_table, summarise


def make_run(policy: str, seed: int, p99_ratio: float, work: float) -> Run:
    seconds = (Second(p99_ratio, (work,)),) * 10
    return Run(scenario="s", policy=policy, seed=seed, seconds=seconds, writes=1, warm_up=0)


def test_a_summary_per_policy_with_the_interval_of_its_seeds() -> None:
    runs = [make_run("a", seed, 0.5, float(seed)) for seed in range(1, 21)]
    runs.append(make_run("b", 1, 1.5, 2.0))
    first, second = summarise(runs)
    assert (first.policy, first.seeds) == ("a", 20)
    assert first.work_cpus.mean == 10.5
    # The standard error is 5.77 / sqrt(20) = 1.29; the interval is two of them on both sides.
    assert first.work_cpus.low == pytest.approx(10.5 - 2.5, abs=0.4)
    assert first.work_cpus.high == pytest.approx(10.5 + 2.5, abs=0.4)
    assert (second.violating.mean, second.violating.low) == (1.0, 1.0)


def test_the_table_has_a_block_per_scenario() -> None:
    text = format_table(summarise([make_run("a", 1, 1.5, 2.0)]), {"s": "a title"})
    assert text.splitlines()[0] == "s: a title"
    assert text.splitlines()[2].split() == ["a", "100.0", "2.00", "6.0", "-", "-"]
