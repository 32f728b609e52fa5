# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Harm coefficients from slowdowns that are known to be made of them."""

from collections.abc import Sequence
from random import Random

import pytest

from controller.core.harm.harm_model import HarmModel
from controller.core.model import CgroupId

TICK_S = 0.2
NOISE = 0.02


def jobs(count: int) -> list[CgroupId]:
    return [CgroupId("cpu", number) for number in range(count)]


def feed(
    model: HarmModel,
    harm: Sequence[float],
    random: Random,
    seconds: float,
    cpus: float = 12.0,
    probed: bool = True,
) -> None:
    """Feed a service beside jobs that share *cpus*; every second one of them is probed."""
    names = jobs(len(harm))
    turn = 0
    for tick in range(round(seconds / TICK_S)):
        if tick % 5 == 0:
            turn = random.randrange(len(names))
        use = [cpus / len(names)] * len(names)
        if probed and tick % 5 < 2:
            taken = 0.7 * use[turn]
            use = [each + taken / (len(names) - 1) for each in use]
            use[turn] = cpus / len(names) - taken
        slowdown = 0.3 + sum(map(float.__mul__, map(float, harm), use)) + random.gauss(0, NOISE)
        model.update(slowdown, random.gauss(0, 0.05), dict(zip(names, use, strict=True)), TICK_S)


def test_probes_show_one_culprit_of_eight_within_ten_seconds() -> None:
    model = HarmModel()
    feed(model, [0.0] * 5 + [0.08] + [0.0] * 2, Random(1), 10)
    deeds = model.deeds()
    assert max(deeds, key=deeds.__getitem__) == jobs(8)[5]
    assert sum(each for name, each in deeds.items() if name != jobs(8)[5]) == 0
    mean, sd = model.contrasts()[jobs(8)[5]]
    assert abs(mean - 0.08) < 3 * sd < 0.08


def test_harmless_is_what_was_seen_to_change_nothing_beside_a_culprit() -> None:
    model = HarmModel()
    feed(model, [0.0, 0.08, 0.06, 0.0], Random(6), 20)
    assert model.harmless() == {jobs(4)[0], jobs(4)[3]}


def test_without_probes_no_workload_is_known_to_be_harmless() -> None:
    model = HarmModel()
    feed(model, [0.0, 0.08, 0.0], Random(2), 20, probed=False)
    assert not model.harmless()


def test_without_changes_of_use_no_workload_is_accused() -> None:
    model = HarmModel()
    feed(model, [0.0, 0.08, 0.0], Random(2), 20, probed=False)
    assert not any(model.deeds().values())


@pytest.mark.parametrize("seed", range(40))
def test_harmless_workloads_are_not_accused(seed: int) -> None:
    model, random = HarmModel(), Random(seed)
    for _ in range(6):
        feed(model, [0.0] * 4, random, 5)
        assert sum(model.deeds().values()) < 0.1


def test_a_new_culprit_is_found_after_the_old_one() -> None:
    model, random = HarmModel(), Random(3)
    feed(model, [0.08, 0.0, 0.0], random, 20)
    feed(model, [0.0, 0.0, 0.08], random, 15)
    deeds = model.deeds()
    assert max(deeds, key=deeds.__getitem__) == jobs(3)[2]


def test_of_hundreds_of_workloads_only_the_largest_have_a_coefficient() -> None:
    model, random = HarmModel(), Random(4)
    names = jobs(300)
    for tick in range(50):
        use = dict.fromkeys(names, 0.01)
        use[names[200]] = 4.0 if tick % 5 < 2 else 1.0
        model.update(0.1 * use[names[200]] + random.gauss(0, NOISE), 0.0, use, TICK_S)
    assert len(model.contrasts()) <= 8
    deeds = model.deeds()
    assert max(deeds, key=deeds.__getitem__) == names[200]


def test_workloads_that_left_are_forgotten() -> None:
    model = HarmModel()
    feed(model, [0.0, 0.08, 0.0], Random(5), 5)
    model.update(0.3, 0.0, {jobs(3)[0]: 1.0}, TICK_S)
    assert list(model.contrasts()) == list(model.reach) == jobs(1)
