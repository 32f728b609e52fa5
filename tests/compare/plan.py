# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The order of the blocks of a comparison, and the repetition of those without a usable result."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
import random

__all__ = ("LEARN_S", "Mix", "Task", "plan", "run")

# How long the agent watches the load of a mix without a job: a sweet point needs a minute without
# disturbance.
LEARN_S = 80.0


@dataclass(frozen=True, slots=True)
class Mix:
    """A service, the shape of its load, and a job, by name."""

    service: str
    shape: str
    job: str

    def __str__(self) -> str:
        return f"{self.service} {self.shape} + {self.job}"


@dataclass(frozen=True, slots=True)
class Task:
    """A block to run."""

    mix: Mix
    policy: str
    round: int

    @property
    def key(self) -> tuple[str, str, int]:
        """Return mix, policy and round as a block has them."""
        return str(self.mix), self.policy, self.round


def plan(mixes: Iterable[Mix], policies: Sequence[str], rounds: int) -> list[Task]:
    """Return the blocks, mix by mix and round by round.

    Policies are in random order in each round. The order depends on mix and round only, so that a
    run that is continued keeps it.
    """
    return [
        Task(mix, policy, number)
        for mix in mixes
        for number in range(1, rounds + 1)
        for policy in random.Random(f"{mix} {number}").sample(policies, len(policies))
    ]


def run(tasks: Iterable[Task], attempt: Callable[[Task, int], bool], spare: int) -> None:
    """Call *attempt* with each of *tasks*, and how many come after it.

    A task of which it returns False is repeated at the end of its round, when what disturbed it may
    be over; at most *spare* times for all tasks together.
    """
    pending = deque(tasks)
    while pending:
        task = pending.popleft()
        if attempt(task, len(pending)) or spare == 0:
            continue
        spare -= 1
        later = (
            place
            for place, each in enumerate(pending)
            if (each.mix, each.round) != (task.mix, task.round)
        )
        pending.insert(next(later, len(pending)), task)
