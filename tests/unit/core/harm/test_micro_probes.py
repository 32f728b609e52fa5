# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Micro-probes within the bounds that the configuration sets."""

from collections import Counter

from controller.core.harm.harm_finder import MicroProbes
from controller.core.model import CgroupId
from controller.core.settings import MicroProbeLimits

A, B = CgroupId("cpu", 1), CgroupId("cpu", 2)
TICK_NS = 200_000_000
LIMITS = MicroProbeLimits(depth_ratio=0.7, length_ns=400_000_000, per_minute=2.0)
Probed = list[tuple[CgroupId, float] | None]


def run(doubts: dict[CgroupId, float], seconds: float, limits: MicroProbeLimits = LIMITS) -> Probed:
    probes = MicroProbes()
    amounts = {A: 4.0, B: 0.04}
    found: Probed = []
    for tick in range(round(seconds * 5)):
        probed = probes.update(doubts, amounts, 0.05, limits, tick * TICK_NS)
        found.append(next(iter(probed.items()), None))
    return found


def starts(found: Probed) -> Counter[CgroupId]:
    before = [None, *found]
    return Counter(
        now[0] for last, now in zip(before, found, strict=False) if now is not None and last is None
    )


def test_a_probe_is_as_deep_and_as_long_as_the_limits_say() -> None:
    found = run({A: 0.1}, 3)
    first = found.index((A, 4.0 * (1.0 - 0.7)))
    assert found[first : first + 3] == [(A, 4.0 * (1.0 - 0.7))] * 2 + [None]


def test_a_workload_is_probed_as_often_as_the_limits_say() -> None:
    assert starts(run({A: 0.1}, 600))[A] in range(20, 23)


def test_nothing_is_probed_without_doubt_or_without_a_rate() -> None:
    assert not starts(run({A: 0.001}, 60))
    assert not starts(run({}, 60))
    assert not starts(run({A: 0.1}, 60, LIMITS._replace(per_minute=0.0)))


def test_a_probe_leaves_the_floor() -> None:
    assert not starts(run({B: 0.1}, 60))


def test_a_probe_ends_when_its_workload_may_not_be_probed_any_more() -> None:
    probes = MicroProbes()
    assert probes.update({A: 0.1}, {A: 4.0}, 0.05, LIMITS, TICK_NS)
    assert not probes.update({B: 0.1}, {B: 4.0}, 0.05, LIMITS, 2 * TICK_NS)


def test_what_could_hurt_more_is_probed_first_as_a_rule() -> None:
    firsts: Counter[CgroupId] = Counter()
    for second in range(200):
        probed = MicroProbes().update(
            {A: 0.3, B: 0.1}, {A: 4.0, B: 4.0}, 0.05, LIMITS, second * 10**9
        )
        firsts.update(list(probed))
    assert 160 < firsts[A] < 197


def test_equal_times_give_equal_probes() -> None:
    assert run({A: 0.1}, 120) == run({A: 0.1}, 120)
