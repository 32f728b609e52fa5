# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from controller.simulation.machine import Machine
from controller.simulation.policies.heracles import CoreLoop, TopLoop

GB = 1e9
MACHINE = Machine(cpus=16, ways=20, bandwidth=40 * GB)


@pytest.mark.parametrize(
    "slack, load, enabled, may_grow, shrinks",
    [
        (-0.01, 0.5, False, True, False),
        (0.5, 0.86, False, True, False),
        (0.5, 0.79, True, True, False),
        (0.01, 0.79, True, True, False),  # the chain applies the slack from a load of 0.80 on
        (0.09, 0.82, True, False, False),
        (0.04, 0.82, True, False, True),
        (0.11, 0.82, True, True, False),
    ],
)
def test_rules_of_the_top_loop(
    slack: float, load: float, enabled: bool, may_grow: bool, shrinks: bool
) -> None:
    top = TopLoop(300.0)
    assert top.update(slack, load, 15.0) is shrinks
    assert (top.enabled, top.may_grow) == (enabled, may_grow)


def test_a_violation_keeps_jobs_off_for_the_cooldown() -> None:
    top = TopLoop(300.0)
    top.update(-0.1, 0.5, 0.0)
    top.update(0.9, 0.5, 299.0)
    assert not top.enabled
    top.update(0.9, 0.5, 300.0)
    assert top.enabled


def test_starts_with_one_cpu_and_a_tenth_of_the_cache() -> None:
    core = CoreLoop(MACHINE)
    assert (core.cores, core.ways) == (1, 2)


def test_too_much_bandwidth_takes_the_overage_in_cpus() -> None:
    core = CoreLoop(MACHINE)
    core.cores = 8
    core.update(total=45 * GB, jobs=40 * GB, work=1.0, may_grow=True, slack=0.5)
    assert core.cores == 6  # 9 GB/s over 36, 5 GB/s per CPU


def test_the_cache_grows_while_it_saves_traffic_and_is_undone_otherwise() -> None:
    core = CoreLoop(MACHINE)
    core.update(total=10 * GB, jobs=5 * GB, work=1.0, may_grow=True, slack=0.5)
    assert core.ways == 3
    core.update(total=9 * GB, jobs=4 * GB, work=1.2, may_grow=True, slack=0.5)
    assert core.ways == 4
    core.update(total=9.5 * GB, jobs=4 * GB, work=1.2, may_grow=True, slack=0.5)
    assert core.ways == 3
    core.update(total=9.5 * GB, jobs=4 * GB, work=1.2, may_grow=True, slack=0.5)
    assert core.cores == 2


def test_cpus_grow_only_with_slack_and_bandwidth() -> None:
    core = CoreLoop(MACHINE)
    core.ways = 19
    core.update(total=10 * GB, jobs=1 * GB, work=1.0, may_grow=True, slack=0.5)
    for slack, may_grow, expected in ((0.05, True, 1), (0.5, False, 1), (0.5, True, 2)):
        core.update(10 * GB, 1 * GB, 1.0, may_grow, slack)
        assert core.cores == expected
    core.update(total=35.5 * GB, jobs=30 * GB, work=1.0, may_grow=True, slack=0.5)
    assert core.cores == 2
