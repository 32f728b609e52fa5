# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The order of blocks, and repetitions."""

from collections import Counter

from tests.compare.plan import Mix, Task, plan, run

MIXES = (Mix("nginx", "steady", "ffmpeg"), Mix("memcached", "bursty", "stream"))
POLICIES = ("alone", "none", "sched-idle", "sweetpoint")


def test_each_round_has_every_policy_and_its_order_does_not_depend_on_the_others() -> None:
    tasks = plan(MIXES, POLICIES, 3)
    assert len(tasks) == len(set(tasks)) == 24
    for start in range(0, 24, 4):
        each = tasks[start : start + 4]
        assert len({(task.mix, task.round) for task in each}) == 1
        assert {task.policy for task in each} == set(POLICIES)
    assert plan(MIXES[1:], POLICIES, 5)[:12] == tasks[12:]
    orders = {tuple(task.policy for task in tasks[start : start + 4]) for start in (0, 4, 8)}
    assert len(orders) > 1


def attempt_with(failing: dict[Task, int], ran: list[Task], left: list[int]):  # type: ignore[no-untyped-def]
    def attempt(task: Task, after: int) -> bool:
        ran.append(task)
        left.append(after)
        failing[task] -= 1
        return failing[task] < 0

    return attempt


def test_a_task_without_a_result_is_repeated_at_the_end_of_its_round() -> None:
    tasks = plan(MIXES, POLICIES, 2)
    ran: list[Task] = []
    left: list[int] = []
    run(tasks, attempt_with(Counter({tasks[1]: 2, tasks[15]: 1}), ran, left), spare=5)
    assert ran[:7] == [*tasks[:4], tasks[1], tasks[1], tasks[4]]
    assert ran[-2:] == [tasks[15], tasks[15]]
    assert len(ran) == 19
    assert left[:4] == [15, 14, 14, 13]
    assert left[-1] == 0


def test_repetitions_are_bounded() -> None:
    tasks = plan(MIXES, POLICIES, 1)
    ran: list[Task] = []
    run(tasks, attempt_with(Counter(dict.fromkeys(tasks, 99)), ran, []), spare=3)
    assert len(ran) == len(tasks) + 3
    assert set(ran) == set(tasks)
