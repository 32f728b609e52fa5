# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The scenarios by name, each with its title."""

from collections.abc import Mapping

from controller.simulation.loads import steady, steps
from controller.simulation.model import Character, Job, Scenario

__all__ = ("SCENARIOS",)

# Integer code in registers: a light neighbour on the same core.
GENTLE = Character(memory=0.02, bandwidth=0.05e9, pressure=0.2, smt=0.12)
# A copy of large arrays, like STREAM: saturates the memory with few CPUs.
STREAM = Character(memory=0.8, bandwidth=7e9, pressure=6.0, working_set=0.5, smt=0.3)


def _three(*characters: Character) -> tuple[Job, ...]:
    return tuple(
        Job(name=f"job-{index}", threads=8, character=each) for index, each in enumerate(characters)
    )


def _always(*jobs: Job) -> "_Jobs":
    return _Jobs(jobs)


class _Jobs:
    """The same jobs at any time."""

    def __init__(self, jobs: tuple[Job, ...]) -> None:
        self._jobs = jobs

    def __call__(self, _: float) -> tuple[Job, ...]:
        return self._jobs


_ALL = (
    Scenario(
        name="one-hurts",
        title="one of three jobs hurts (bandwidth)",
        load=steps(0.35, 0.7, every_s=20),
        jobs_at=_always(*_three(STREAM, GENTLE, GENTLE)),
    ),
    Scenario(
        name="harmless",
        title="no job hurts",
        load=steady(0.6),
        jobs_at=_always(*_three(GENTLE, GENTLE, GENTLE)),
    ),
)
SCENARIOS: Mapping[str, Scenario] = {each.name: each for each in _ALL}
