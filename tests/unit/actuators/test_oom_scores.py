# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The values of oom_score_adj that a cgroup had, as a record keeps them."""

import pytest

from actuators.oom_scores import Originals, Process
from controller.core.model import KnobValue

MIXED = Originals(400, {Process(7, 99): -5, Process(8, 98): 17})
# Parent and start, by pid.
PARENTS = {7: (1, 99), 8: (1, 1000), 20: (7, 100), 21: (20, 101), 22: (8, 102), 23: (1, 103)}


@pytest.mark.parametrize("values", [Originals(1000, {}), MIXED])
def test_a_record_keeps_all_values(values: Originals) -> None:
    assert Originals.parse(values.text) == values


@pytest.mark.parametrize("text", ["", "own", "400 7=5", "400 7:99", "400 7:99=x"])
def test_another_text_is_no_record(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid literal|not enough values"):
        Originals.parse(KnobValue(text))


@pytest.mark.parametrize(
    ("pid", "start", "value"),
    [
        (7, 99, -5),
        (20, 100, -5),  # its child
        (21, 101, -5),
        (8, 1000, 400),  # another process with that pid
        (22, 102, 400),
        (23, 103, 400),
        (99, 1, 400),  # not in the cgroup
    ],
)
def test_a_process_gets_the_value_of_its_nearest_known_ancestor(
    pid: int, start: int, value: int
) -> None:
    assert MIXED.of(Process(pid, start), PARENTS) == value


def test_a_circle_of_parents_ends() -> None:
    assert MIXED.of(Process(3, 1), {3: (4, 1), 4: (3, 1)}) == 400
