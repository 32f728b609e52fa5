# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The allocator over time: engagement, grants, floors, blocked workloads, parents and release."""

from functools import partial

import pytest

from controller.core.channels.allocator import (
    ProportionalAllocator,
    Users,
    total_for,
)
from controller.core.model import CgroupId

HOG, MOUSE = CgroupId("cpu", 1), CgroupId("cpu", 2)
BATCH = {CgroupId("cpu", 10 + cpus): float(cpus) for cpus in (1, 2, 4)}
SECOND_NS = 1_000_000_000
FLOOR = 0.05
NONE: frozenset[CgroupId] = frozenset()


class Stepper:
    """An allocator, one second per step; the hog does nearly all the harm."""

    def __init__(self) -> None:
        self.rung = ProportionalAllocator(2.0, 0.01)
        self.now_ns = 0
        self.harm: dict[CgroupId, float] | None = {HOG: 1.0, MOUSE: 0.02}
        self.others = 0.2  # CPUs that services need
        self.requests: dict[CgroupId, float] = {}

    def step(
        self,
        demand: float,
        use: dict[CgroupId, float],
        blocked: frozenset[CgroupId] = NONE,
        harmless: frozenset[CgroupId] = NONE,
        growth: float = 0.0,
        after_ns: int = SECOND_NS,
    ) -> dict[CgroupId, float]:
        self.now_ns += after_ns
        harm = self.harm
        find_harm = None if harm is None else lambda wants: harm
        users = Users(
            len(use),
            FLOOR,
            blocked,
            requests=self.requests,
            harmless=harmless,
        )
        self.rung.ceiling.update(self.now_ns, 1.0, 1.9, self.others)
        return self.rung.update(demand, users, lambda: use, self.now_ns, find_harm, lambda: growth)


@pytest.mark.parametrize(("growth", "divided"), [(0.5, True), (0.0001, False)])
def test_what_newly_uses_much_does_not_wait_a_second(growth: float, divided: bool) -> None:
    stepper = Stepper()
    use = {HOG: 1.0, MOUSE: 0.01}
    stepper.step(1.0, use)
    stepper.step(1.0, use)
    grants = stepper.step(1.0, use | {MOUSE: 0.5}, growth=growth, after_ns=SECOND_NS // 5)
    assert (MOUSE in grants) == divided


def test_without_demand_nothing_is_limited() -> None:
    stepper = Stepper()
    assert stepper.step(0.0, {HOG: 1.0}) == {}
    assert stepper.rung.total is None


def test_it_starts_at_the_use_and_cuts_the_culprit() -> None:
    stepper = Stepper()
    grants = stepper.step(0.5, {HOG: 0.8, MOUSE: 0.2})
    # The harm of the use is 0.804, of the floors 0.051: half-way, geometrically, is 0.2025.
    assert grants == {HOG: pytest.approx(0.1985, rel=0.01)}
    assert stepper.rung.total == pytest.approx(0.1985 + 0.1973, rel=0.01)


def test_where_the_harm_of_each_is_not_known_all_are_cut_alike() -> None:
    stepper = Stepper()
    stepper.harm = None
    grants = stepper.step(0.5, {HOG: 0.8, MOUSE: 0.2})
    # 1.0 is used, the floors are 0.1: half-way between them, geometrically, is 0.316.
    assert stepper.rung.total == pytest.approx(0.316, rel=0.01)
    assert grants == pytest.approx({HOG: 0.230, MOUSE: 0.086}, rel=0.01)


def test_full_demand_is_the_floor_for_all() -> None:
    stepper = Stepper()
    assert stepper.step(1.0, {HOG: 0.8, MOUSE: 0.2}) == pytest.approx({HOG: FLOOR, MOUSE: FLOOR})


def test_the_want_of_a_squeezed_workload_is_kept() -> None:
    stepper = Stepper()
    grants = stepper.step(0.7, {HOG: 1.0})
    for _ in range(120):
        grants = stepper.step(0.7, {HOG: grants[HOG]})
    assert stepper.step(0.0, {HOG: grants[HOG]})[HOG] > 1.0


def test_the_grant_of_an_idle_workload_stays_above_the_floor() -> None:
    stepper = Stepper()
    stepper.step(0.7, {HOG: 1.0, MOUSE: 0.5})
    for _ in range(300):
        grants = stepper.step(0.9, {HOG: 0.001, MOUSE: 0.5})
    assert grants[HOG] >= FLOOR


def test_blocked_workloads_keep_their_use_and_the_others_are_cut() -> None:
    stepper = Stepper()
    grants = stepper.step(1.0, {HOG: 0.8, MOUSE: 0.4}, frozenset({HOG}))
    assert grants == {MOUSE: pytest.approx(FLOOR)}


def test_it_releases_after_a_hold_off_time_without_demand() -> None:
    stepper = Stepper()
    stepper.step(0.5, {HOG: 1.0})
    held = [stepper.step(0.0, {HOG: 1.0}) for _ in range(25)]
    assert held[18]
    assert not held[-1]


def test_without_demand_no_grant_follows_the_ceiling_down() -> None:
    stepper = Stepper()
    first = stepper.step(0.1, {HOG: 1.0})
    for others in (0.5, 1.0, 1.5, 1.85):
        stepper.others = others
        held = stepper.step(0.0, {HOG: 1.0, MOUSE: 1.0})
        assert held.keys() == {HOG}
        assert held[HOG] >= first[HOG]
    assert stepper.step(0.1, {HOG: 1.0})[HOG] < first[HOG]


def test_floors_never_take_up_all_of_a_squeeze() -> None:
    """The floors of 100 workloads, 50 mcpu each, add up to five CPUs of the two there are."""
    rung = ProportionalAllocator(2.0, 0.01)
    use = {CgroupId("cpu", n): 0.02 for n in range(100)}
    for second in range(1, 5):
        rung.ceiling.update(second * SECOND_NS, 1.0, 2.0, 0.1)
        grants = rung.update(1.0, Users(len(use), 0.05), lambda: use, second * SECOND_NS)
    assert rung.total == pytest.approx(1.0)
    assert all(cpus == pytest.approx(0.01) for cpus in grants.values())


def test_the_want_of_a_workload_is_kept_while_its_parent_limits_it() -> None:
    rung = ProportionalAllocator(2.0, 0.001, low_floors=True)
    parent = CgroupId("cpu", 999)
    use = {CgroupId("cpu", n): 0.01 for n in range(200)} | {HOG: 1.0}
    parents = dict.fromkeys(use, parent)
    for second in range(1, 200):
        rung.ceiling.update(second * SECOND_NS, 1.0, 2.0, 0.1)
        amounts = rung.update(
            1.0,
            Users(len(use), 0.02, parents=parents),
            partial(dict, use),
            second * SECOND_NS,
            lambda wants: dict.fromkeys(wants, 1.0),
        )
        use = dict.fromkeys(use, amounts[parent] / len(use))
    assert amounts[parent] == pytest.approx(0.04)
    assert amounts[HOG] == 0.001
    assert rung.wants[HOG] == 1.0


def test_equal_steps_of_demand_are_equal_factors_of_quota() -> None:
    assert total_for(0.0, 0.1, 1.6) == pytest.approx(1.6)
    assert total_for(1.0, 0.1, 1.6) == pytest.approx(0.1)
    assert total_for(0.5, 0.1, 1.6) == pytest.approx(0.4)
    assert total_for(0.3, 0.5, 0.2) == 0.5


def test_after_a_release_at_once_nothing_is_held_and_the_next_squeeze_starts_at_the_use() -> None:
    stepper = Stepper()
    use = {HOG: 0.8, MOUSE: 0.2}
    first = stepper.step(0.5, use)
    stepper.rung.release()
    for _ in range(5):
        assert stepper.step(0.0, use) == {}
        assert not stepper.rung.engaged
    assert stepper.step(0.5, use) == first


def test_a_harmless_workload_loses_its_limit_and_may_use_what_the_culprit_leaves() -> None:
    stepper = Stepper()
    both = stepper.step(0.5, {HOG: 0.8, MOUSE: 0.8})
    assert stepper.step(0.9, {HOG: 0.1, MOUSE: 0.7}).keys() == both.keys()
    for _ in range(21):  # the hold-off time
        grants = stepper.step(0.5, {HOG: 0.1, MOUSE: 0.7}, harmless=frozenset({MOUSE}))
    assert grants.keys() == {HOG}
    # It uses more now, which raises its want and not the culprit's grant.
    later = stepper.step(0.5, {HOG: 0.1, MOUSE: 1.5}, harmless=frozenset({MOUSE}))
    assert later.keys() == {HOG}
    assert later[HOG] <= 1.1 * grants[HOG]


def test_at_full_demand_a_harmless_workload_is_limited_as_well() -> None:
    stepper = Stepper()
    stepper.step(0.5, {HOG: 0.8, MOUSE: 0.8}, harmless=frozenset({MOUSE}))
    full = stepper.step(1.0, {HOG: 0.8, MOUSE: 0.8}, harmless=frozenset({MOUSE}))
    assert full == pytest.approx({HOG: FLOOR, MOUSE: FLOOR})


@pytest.mark.parametrize("demand", [0.2, 0.5, 0.9, 1.0])
def test_workloads_of_equal_harm_get_what_they_requested_in_proportion(demand: float) -> None:
    stepper = Stepper()
    stepper.harm = dict.fromkeys(BATCH, 1.0)
    stepper.requests = BATCH
    # Without quotas the kernel gives all the same.
    use = dict.fromkeys(BATCH, 0.55)
    for _ in range(40):
        grants = stepper.step(demand, use)
        use = {each: min(cpus, grants.get(each, 0.55)) for each, cpus in BATCH.items()}
    parts = [grants[each] / cpus for each, cpus in BATCH.items()]
    assert parts == pytest.approx([parts[0]] * 3, rel=0.05)
    assert sum(grants.values()) == pytest.approx(stepper.rung.total, rel=0.1)


def test_what_a_workload_does_not_use_of_its_request_goes_to_the_others() -> None:
    stepper = Stepper()
    stepper.harm = dict.fromkeys(BATCH, 1.0)
    stepper.requests = BATCH
    small, middle, large = BATCH
    use = {small: 0.7, middle: 0.7, large: 0.1}
    for _ in range(60):
        grants = stepper.step(0.2, use)
        use = {small: grants[small], middle: grants[middle], large: 0.1}
    assert grants.get(large, 0.1) <= 1.5 * use[large]
    assert grants[middle] == pytest.approx(2 * grants[small], rel=0.05)
    assert grants[small] + grants[middle] > 0.8 * (stepper.rung.total or 0.0)


def test_a_culprit_with_a_large_request_is_cut_all_the_same() -> None:
    stepper = Stepper()
    small, middle, large = BATCH
    stepper.harm = {small: 0.02, middle: 0.02, large: 1.0}
    stepper.requests = BATCH
    for _ in range(10):
        grants = stepper.step(0.6, dict.fromkeys(BATCH, 0.55))
    assert grants[large] < 0.5 * grants.get(middle, 0.55)
