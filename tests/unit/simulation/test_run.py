# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
from functools import partial

import pytest

from controller.simulation.plant import Plant
from controller.simulation.policies.fixed import Fixed
from controller.simulation.run import Run, Second, Task, run
from controller.simulation.scenarios import SCENARIOS


class _Toggle:
    """Writes one quota every second."""

    interval_s = 1.0

    def __init__(self, plant: Plant) -> None:
        self._plant = plant

    def step(self) -> None:
        quota = self._plant.knobs.quota
        quota[0] = 3.0 - quota[0] if quota[0] < 3.0 else 1.0


def test_only_seconds_after_the_warm_up_count() -> None:
    one = Run(
        scenario="s",
        policy="p",
        seed=1,
        seconds=(
            Second(9.0, (1.0, 0.0)),
            Second(1.01, (2.0, 1.0), True),
            Second(None, (4.0, 1.0), False),
            Second(0.99, (6.0, 1.0)),
        ),
        writes=3,
        warm_up=1,
    )
    assert one.violating == 1 / 3
    assert one.job_work_cpus == (4.0, 1.0)
    assert one.work_cpus == 5.0
    assert one.right == 0.5
    assert one.writes_per_min == 60.0


def test_writes_are_counted_after_the_warm_up() -> None:
    result = run(Task(SCENARIOS["harmless"], "toggle", _Toggle, 1), seconds=8, warm_up=3)
    assert result.writes == 5
    assert len(result.counted) == 5


def test_a_fixed_policy_writes_before_the_warm_up_only() -> None:
    result = run(Task(SCENARIOS["harmless"], "none", Fixed, 1), seconds=4, warm_up=1)
    assert result.writes == 0
    assert all(second.work_cpus > 1 for second in result.seconds)


class _Limit:
    """Limits one job from the start."""

    interval_s = 1e9

    def __init__(self, plant: Plant, job: int) -> None:
        self._plant, self._job = plant, job

    def step(self) -> None:
        self._plant.knobs.quota[self._job] = 0.5


@pytest.mark.parametrize("job, right", [(0, True), (1, False)])
def test_the_job_that_is_limited_most_is_compared_with_the_harmful_one(
    job: int, right: bool
) -> None:
    task = Task(SCENARIOS["bandwidth"], "limit", partial(_Limit, job=job), 1)
    assert [each.right for each in run(task, 3, 1).seconds] == [right] * 3


def test_to_limit_all_alike_is_not_right() -> None:
    class LimitAll(_Limit):
        def step(self) -> None:
            self._plant.knobs.quota[:] = 0.5

    task = Task(SCENARIOS["bandwidth"], "limit", partial(LimitAll, job=0), 1)
    assert run(task, 3, 1).seconds[-1].right is False


def test_nothing_is_right_or_wrong_just_after_a_change() -> None:
    task = Task(SCENARIOS["culprit-changes"], "limit", partial(_Limit, job=0), 1)
    rights = [each.right for each in run(task, 30, 1).seconds]
    assert rights[18] is True
    assert rights[20:24] == [None] * 4
    assert rights[26] is False


def test_evictions_are_recorded_with_their_justice() -> None:
    class Evict(_Limit):
        def step(self) -> None:
            self._plant.knobs.evicted[self._job] = True

    task = Task(SCENARIOS["bandwidth"], "evict", partial(Evict, job=1), 1)
    result = run(task, 3, 1)
    assert result.evicted == (("job-1", False),)
    assert result.job_work_cpus[1] == 0.0
