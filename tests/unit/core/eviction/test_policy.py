# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which workload is evicted, when, and when none is."""

from collections.abc import Iterable
import itertools

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from controller.core.decision import Eviction
from controller.core.eviction.budget import Candidate, EvictionHistory
from controller.core.model import CgroupId, Channel, EvictionAnswer, EvictionResult
from controller.core.settings import EvictionLimits
from tests.support.loops.eviction_stepper import HOG, MOUSE, OTHER, SECOND_NS, Stepper, candidate


def test_the_largest_blame_is_evicted_after_a_minute_and_one_at_a_time() -> None:
    stepper = Stepper(candidate(MOUSE, 0.1), candidate(HOG, 0.9), candidate(OTHER, 0.5))
    assert stepper.run(60) == []
    (eviction,) = stepper.run(1)
    assert (eviction.cgroup, eviction.channel, eviction.service) == (HOG, Channel.CPU, "web")
    assert "60 s" in eviction.reason
    assert stepper.run(100) == []


def test_equal_blame_is_decided_by_priority_then_size() -> None:
    first = candidate(MOUSE, 0.5, priority=10, size=9.0)
    second, third = candidate(HOG, 0.5, size=1.0), candidate(OTHER, 0.5, size=2.0)
    assert Stepper(first, second, third).run(61)[0].cgroup == OTHER


def test_a_tick_without_deviation_restarts_the_minute() -> None:
    stepper = Stepper(candidate(HOG, 1.0))
    assert stepper.run(50) == []
    stepper.step(deviation=-0.1)
    assert stepper.run(60) == []
    assert stepper.run(1)


def test_nothing_is_evicted_without_evidence_before_the_stop_or_if_disabled() -> None:
    for caused, at_stop, enabled in ((False, True, True), (True, False, True), (True, True, False)):
        stepper = Stepper(candidate(HOG, 1.0))
        for _ in range(300):
            assert stepper.step(caused=caused, at_stop=at_stop, enabled=enabled) is None
    stepper = Stepper(candidate(HOG, 1.0))
    assert stepper.run(300, caused=False) == []
    assert stepper.verdicts == [
        "suffers on cpu although every knob is at its stop: not caused by best-effort, "
        "nothing is evicted"
    ]
    assert Stepper(candidate(HOG, 0.0)).run(300) == []


def test_an_unknown_share_neither_evicts_nor_says_that_best_effort_is_not_the_cause() -> None:
    stepper = Stepper(candidate(HOG, 1.0))
    assert stepper.run(100, caused=None) == []
    assert stepper.verdicts == []
    assert stepper.run(1)


def test_an_eviction_that_helped_is_followed_by_the_next_sooner_than_one_that_did_not() -> None:
    def seconds_to_the_second(deviation_after: float) -> int:
        stepper = Stepper(candidate(HOG, 1.0), candidate(MOUSE, 0.5))
        assert stepper.run(61)
        stepper.leave(HOG)
        stepper.run(35, deviation_after)
        for second in range(1000):
            if stepper.step(max(0.1, deviation_after)) is not None:
                return second
        raise AssertionError("no second eviction")

    helped, useless = seconds_to_the_second(0.5), seconds_to_the_second(1.0)
    assert helped < useless


def test_the_effect_of_an_eviction_is_reported() -> None:
    stepper = Stepper(candidate(HOG, 1.0), candidate(MOUSE, 0.5))
    stepper.run(61)
    stepper.leave(HOG)
    stepper.run(40, deviation=-0.5)
    assert stepper.verdicts[-1].startswith("its eviction helped: deviation 1.00 before, -0.")


def evicted(*candidates: Candidate) -> Stepper:
    """Return a policy whose first eviction was carried out."""
    stepper = Stepper(*candidates)
    (eviction,) = stepper.run(61)
    stepper.leave(eviction.cgroup)
    return stepper


def test_without_its_service_an_eviction_is_neither_a_help_nor_useless() -> None:
    crowd = [candidate(CgroupId("cpu", number), 1.0) for number in range(9)]
    stepper = evicted(*crowd)
    stepper.run(5)
    for _ in range(40):
        stepper.step_without_service()
    assert stepper.verdicts[-1] == (
        "its eviction was not verified: web left, is idle or has no data"
    )
    # The service is back and suffers again: the cool-down was that after an eviction that helped.
    assert len(stepper.run(62)) == 1
    # A service that returned shortly before the end counts with what it shows then.
    stepper = evicted(*crowd)
    for _ in range(27):
        stepper.step_without_service()
    stepper.run(10, deviation=-0.5)
    assert stepper.verdicts[-1] == "its eviction helped: deviation 1.00 before, -0.50 after"


def test_the_effect_of_an_eviction_is_that_on_the_service_it_was_for() -> None:
    stepper = evicted(candidate(HOG, 1.0))
    stepper.deviations["web"] = -0.5
    for _ in range(32):  # another service is the worst of the channel now
        stepper.step(1.5, service="db")
    assert stepper.verdicts[-1] == "its eviction helped: deviation 1.00 before, -0.50 after"
    stepper = Stepper(candidate(HOG, 1.0))
    for _ in range(60):
        stepper.step(2.0, service="db")
    assert stepper.step(0.5) is not None
    stepper.leave(HOG)
    stepper.run(32, deviation=0.5)
    assert stepper.verdicts[-1] == "its eviction did not help: deviation 0.50 before, 0.50 after"


def test_after_a_refusal_the_next_candidate_is_tried() -> None:
    stepper = Stepper(candidate(HOG, 1.0), candidate(MOUSE, 0.5))
    assert stepper.run(61)[0].cgroup == HOG
    stepper.answer(HOG, EvictionResult.REFUSED)
    assert stepper.run(5) == []
    assert stepper.run(1)[0].cgroup == MOUSE
    assert "eviction refused: because" in stepper.verdicts
    stepper.answer(MOUSE, EvictionResult.REFUSED)
    assert stepper.run(200) == []
    assert stepper.run(150)[0].cgroup == HOG, "after five minutes it is tried again"


def test_an_answer_in_a_tick_with_another_eviction_is_taken() -> None:
    stepper = Stepper(candidate(MOUSE, 0.5), candidate(HOG, 0.9))
    assert stepper.run(61)
    stepper.answer(HOG, EvictionResult.REFUSED)
    stepper.may_evict = False
    assert stepper.run(20) == []
    assert not stepper.policy.in_progress and not stepper.policy.budget.asked_ns
    stepper.may_evict = True
    assert stepper.run(1)[0].cgroup == MOUSE


def test_the_answer_to_an_eviction_for_memory_is_none_to_one_for_a_service() -> None:
    stepper = Stepper(candidate(HOG, 0.9))
    assert stepper.run(61)
    stepper.answers = [EvictionAnswer(HOG, Channel.MEMORY, EvictionResult.REFUSED, "because")]
    stepper.step()
    assert stepper.policy.in_progress


def test_a_hundred_candidates_behind_one_budget_are_tried_slowly_one_by_one() -> None:
    crowd = [candidate(CgroupId("cpu", number), 1.0) for number in range(100)]
    stepper = Stepper(*crowd)
    requested = 0
    for _ in range(360):
        for eviction in stepper.run(1):
            requested += 1
            stepper.answer(eviction.cgroup, EvictionResult.REFUSED)
    assert 40 <= requested <= 60


def test_a_small_share_is_not_evicted_in_place_of_a_large_one() -> None:
    for other, evicted in ((0.02, False), (0.19, False), (0.2, True), (0.5, True)):
        stepper = Stepper(candidate(HOG, 0.9), candidate(MOUSE, other))
        assert stepper.run(61)[0].cgroup == HOG
        stepper.answer(HOG, EvictionResult.REFUSED)
        assert [each.cgroup for each in stepper.run(100)] == ([MOUSE] if evicted else [])


def test_the_shares_of_the_remaining_candidates_add_up() -> None:
    crowd = [candidate(CgroupId("cpu", number), 0.06) for number in range(10, 15)]
    stepper = Stepper(candidate(HOG, 0.6), *crowd)
    stepper.run(61)
    stepper.answer(HOG, EvictionResult.REFUSED)
    assert len(stepper.run(100)) == 1
    few = Stepper(candidate(HOG, 0.6), *crowd[:3])
    few.run(61)
    few.answer(HOG, EvictionResult.REFUSED)
    assert few.run(200) == []


def test_no_other_workload_is_evicted_for_one_that_is_no_candidate() -> None:
    # The pod of a DaemonSet is not among the candidates, and caused most of the deviation.
    assert Stepper(candidate(MOUSE, 0.05)).run(300) == []


def test_an_unreachable_server_holds_all_evictions_and_uses_no_budget() -> None:
    stepper = Stepper(candidate(HOG, 1.0), candidate(MOUSE, 0.5))
    assert stepper.run(61)[0].cgroup == HOG
    for _ in range(5):
        stepper.answer(HOG, EvictionResult.HELD)
        assert stepper.run(60) == []
        assert stepper.run(1)[0].cgroup == HOG
    stepper.answer(HOG, EvictionResult.HELD, wait_s=100)
    assert stepper.run(100) == []
    assert stepper.run(1)[0].cgroup == HOG


def test_an_eviction_that_is_only_reported_is_repeated_after_its_wait() -> None:
    stepper = Stepper(candidate(HOG, 1.0), candidate(MOUSE, 0.5))
    assert stepper.run(61)[0].cgroup == HOG
    stepper.answer(HOG, EvictionResult.REPORTED, wait_s=600)
    assert stepper.run(600) == []
    assert not any("did not leave" in text for text in stepper.verdicts)
    assert stepper.run(1)[0].cgroup == HOG


def test_a_frozen_workload_is_verified_as_if_it_had_left() -> None:
    stepper = Stepper(candidate(HOG, 1.0))
    assert stepper.run(61)[0].cgroup == HOG
    stepper.answer(HOG, EvictionResult.FROZEN, wait_s=600)
    stepper.run(31, deviation=-0.5)
    assert stepper.verdicts[-1].startswith("its eviction helped")
    assert stepper.run(500) == [], "it is frozen already"
    assert stepper.run(150)[0].cgroup == HOG


def test_a_victim_that_needs_long_to_leave_is_waited_for() -> None:
    stepper = Stepper(candidate(HOG, 1.0), candidate(MOUSE, 0.5))
    assert stepper.run(61)[0].cgroup == HOG
    stepper.answer(HOG, EvictionResult.EVICTED, wait_s=600)
    assert stepper.run(599) == []
    assert not any("did not leave" in text for text in stepper.verdicts)
    stepper.run(2)
    assert any("did not leave" in text for text in stepper.verdicts)


def test_an_unanswered_eviction_counts_against_the_budget() -> None:
    crowd = [candidate(CgroupId("cpu", number), 1.0) for number in range(9)]
    stepper = Stepper(*crowd, limits=EvictionLimits(per_hour=1, cool_down_ns=SECOND_NS))
    (first,) = stepper.run(61)
    stepper.answer(first.cgroup, EvictionResult.UNANSWERED)
    assert stepper.run(3500) == []
    assert len(stepper.run(200)) == 1


def test_budget_and_cool_down_are_those_of_the_configuration() -> None:
    limits = EvictionLimits(per_hour=1, cool_down_ns=SECOND_NS)
    crowd = [candidate(CgroupId("cpu", number), 1.0) for number in range(9)]
    stepper = Stepper(*crowd, limits=limits)
    (first,) = stepper.run(61)
    stepper.leave(first.cgroup)
    assert stepper.run(3500) == []
    assert len(stepper.run(200)) == 1


def test_a_successor_has_the_remaining_budget_and_cool_down() -> None:
    limits = EvictionLimits(per_hour=2, cool_down_ns=300 * SECOND_NS)
    crowd = [candidate(CgroupId("cpu", number), 1.0) for number in range(9)]
    evicted_s: list[int] = []
    stepper = Stepper(*crowd, limits=limits)
    while stepper.now_ns < 7000 * SECOND_NS:
        for each in stepper.run(1):
            evicted_s.append(stepper.now_ns // SECOND_NS)
            stepper.leave(each.cgroup)
        if stepper.now_ns % (100 * SECOND_NS) == 0:  # a crash of the agent, perhaps by the eviction
            now_ns, candidates = stepper.now_ns, stepper.candidates
            stepper = Stepper(*candidates, limits=limits, before=stepper.policy.history)
            stepper.now_ns = now_ns
    assert len(evicted_s) == 4
    assert all(b - a >= 330 for a, b in itertools.pairwise(evicted_s))
    assert evicted_s[2] - evicted_s[0] >= 3600 and evicted_s[3] - evicted_s[1] >= 3600


def test_the_history_covers_an_eviction_without_an_answer() -> None:
    stepper = Stepper(candidate(HOG, 1.0), candidate(MOUSE, 0.5))
    assert stepper.run(61)
    history = stepper.policy.history
    assert history.asked_ns == (61 * SECOND_NS,)
    # Two minutes to leave, half a minute to verify, a minute to cool down.
    assert history.not_before_ns == (61 + 120 + 30 + 60) * SECOND_NS
    stepper.answer(HOG, EvictionResult.REFUSED)
    stepper.candidates = [candidate(HOG, 1.0)]
    stepper.run(1)
    assert stepper.policy.history == EvictionHistory(), "it used no budget"


def test_a_victim_that_does_not_leave_does_not_block_the_others_for_ever() -> None:
    stepper = Stepper(candidate(HOG, 1.0))
    assert len(stepper.run(61)) == 1
    stepper.run(121)
    assert any("did not leave" in text for text in stepper.verdicts)


def test_no_more_than_three_in_an_hour() -> None:
    stepper = Stepper(*(candidate(CgroupId("cpu", number), 1.0) for number in range(50)))
    evicted: list[Eviction] = []
    while stepper.now_ns < 3500 * SECOND_NS:
        found = stepper.run(1)
        evicted += found
        for each in found:
            stepper.leave(each.cgroup)
    assert len(evicted) == 3


@given(
    st.lists(
        st.tuples(
            st.floats(-1, 2), st.booleans(), st.booleans(), st.sampled_from(("", "leave", "refuse"))
        ),
        min_size=1,
        max_size=60,
    )
)
@hypothesis_settings(max_examples=100, deadline=None)
def test_whatever_happens_evictions_are_few_and_only_of_blamed_workloads(
    history: Iterable[tuple[float, bool, bool, str]],
) -> None:
    stepper = Stepper(candidate(HOG, 0.7), candidate(MOUSE, 0.0), candidate(OTHER, 0.3))
    last: Eviction | None = None
    evicted = []
    for deviation, at_stop, caused, then in history:
        for _ in range(20):
            eviction = stepper.step(deviation, at_stop=at_stop, caused=caused)
            if eviction is not None:
                assert at_stop and caused and deviation > 0
                assert eviction.cgroup in (HOG, OTHER)
                evicted.append(eviction)
                last = eviction
        if last is not None and then == "leave":
            stepper.leave(last.cgroup)
        elif last is not None and then == "refuse":
            stepper.answer(last.cgroup, EvictionResult.REFUSED)
    # Three evictions, and at most one refused eviction of a workload in five minutes.
    assert len(evicted) <= 3 + 2 * (1 + stepper.now_ns // (300 * SECOND_NS))
