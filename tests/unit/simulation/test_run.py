# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
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
        seconds=(Second(9.0, 1.0), Second(1.01, 2.0), Second(None, 4.0), Second(0.99, 6.0)),
        jobs=1,
        writes=3,
        warm_up=1,
    )
    assert one.violating == 1 / 3
    assert one.work_cpus == 4.0
    assert one.writes_per_min == 60.0


def test_writes_are_counted_after_the_warm_up() -> None:
    result = run(Task(SCENARIOS["harmless"], "toggle", _Toggle, 1), seconds=8, warm_up=3)
    assert result.writes == 5
    assert len(result.counted) == 5


def test_a_fixed_policy_writes_before_the_warm_up_only() -> None:
    result = run(Task(SCENARIOS["harmless"], "none", Fixed, 1), seconds=4, warm_up=1)
    assert result.writes == 0
    assert all(second.work_cpus > 1 for second in result.seconds)
