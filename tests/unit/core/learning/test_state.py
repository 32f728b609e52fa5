# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Sweet points by load, their bounds, and the records of what is learned."""

from dataclasses import replace
import json
import math

import pytest

from controller.core.indicators.measurement import sweet_point_at
from controller.core.learning.normal import LearnedLoad
from controller.core.learning.state import LearnedIndicator, State, inflation, value_at
from controller.core.model import IndicatorName
from controller.core.settings import IndicatorSpec
from controller.core.units import NS_PER_SEC
from tests.support.loops.closed_loop import make_spec

SPEC = replace(make_spec(4e6), learn=True, allow=0.4)


def learned(values: dict[float, float], spec: IndicatorSpec = SPEC, windows: int = 100) -> State:
    """Return a state that saw each value of *values* at its load."""
    state = State("cpu", "image", spec.tolerance)
    for load, value in values.items():
        for _ in range(windows):
            state.add(value, load, spec.resolution, NS_PER_SEC)
    return state


def points(state: State, loads: list[float], spec: IndicatorSpec = SPEC) -> list[float]:
    wanted = state.spec(spec, None)
    return [round((sweet_point_at(wanted, load) or 0.0) / 1e6, 1) for load in loads]


def test_the_sweet_point_lies_above_what_is_normal_as_far_as_the_profile_allows() -> None:
    assert points(learned({1.0: 2e6}), [1.0]) == [pytest.approx(2.83, abs=0.15)]


def test_each_load_has_its_own_sweet_point_and_others_that_of_the_profile() -> None:
    state = learned({0.5: 1.5e6, 4.0: 6e6})
    # Up to an octave away the nearest load counts; 4 ms is the profile's.
    assert points(state, [0.1, 0.3, 0.5, 0.9, 1.5, 3.0, 4.0, 7.9, 12.0]) == [
        4.0, 2.1, 2.1, 2.1, 4.0, 8.3, 8.3, 8.3, 4.0,
    ]  # fmt: skip


def test_without_a_value_in_the_profile_the_nearest_load_counts() -> None:
    spec = replace(SPEC, sweet_point=None)
    state = learned({0.5: 1.5e6, 4.0: 6e6}, spec)
    assert points(state, [0.001, 0.5, 1.3, 1.5, 4.0, 100.0], spec) == [2.1, 2.1, 2.1, 2.1, 8.3, 8.3]
    assert State("", "", 2.0).spec(spec, None) is spec


def test_values_that_hardly_depend_on_the_load_are_sure_together() -> None:
    """Seven windows at each of nine loads: none has enough, all together have."""
    state = learned({2.0**n: 2e6 * 1.05**n for n in range(-4, 5)}, windows=7)
    wanted = state.spec(SPEC, None)
    assert wanted.bins == ()
    assert wanted.sweet_point == pytest.approx(2.9e6, rel=0.1)
    assert not learned({2.0**n: 2e6 * 1.3**n for n in range(-4, 5)}, windows=7).is_sure


def test_the_sweet_point_stays_within_a_factor_of_four_of_the_profile() -> None:
    assert points(learned({1.0: 1e5}), [1.0]) == [1.0]
    assert points(learned({1.0: 1e9}), [1.0]) == [16.0]
    assert points(learned({1.0: 1e5}, spec := replace(SPEC, least=2e6)), [1.0], spec) == [2.0]
    least = replace(SPEC, sweet_point=None)
    assert points(learned({1.0: 0.0}, least), [1.0], least) == [0.5]


def test_a_share_of_time_has_no_sweet_point_above_one() -> None:
    spec = replace(SPEC, name=IndicatorName.PSI_CPU, sweet_point=None, resolution=0.001, allow=1.0)
    assert learned({0.0: 0.65}, spec).spec(spec, None).sweet_point == 1.0
    assert learned({0.0: 0.25}, spec).spec(spec, None).sweet_point == pytest.approx(0.5, rel=0.05)


def test_what_is_not_sure_changes_nothing() -> None:
    assert learned({1.0: 2e6}, windows=50).spec(SPEC, None) is SPEC


def test_pressure_has_one_sweet_point() -> None:
    spec = replace(SPEC, name=IndicatorName.PSI_MEMORY, sweet_point=0.1, resolution=0.001)
    state = learned({0.0: 0.05}, spec)
    assert state.loads == {}
    wanted = state.spec(spec, None)
    assert wanted.bins == ()
    assert wanted.sweet_point == pytest.approx(0.07, rel=0.05)


@pytest.mark.parametrize("allow", [0.01, 0.4, 9.0])
def test_the_objective_decides_where_it_is_known_what_it_allows(allow: float) -> None:
    state = learned({1.0: 2e6})
    own_ns = 5e6
    spec = replace(SPEC, allow=allow)
    for step in range(2000):
        value = 2e6 + 8e6 * (step % 100) / 100
        # Latency is the normal one and the wait: the objective of 12 ms allows waits of 7 ms.
        state.relation.add(
            inflation(SPEC.name, value, 2e6, own_ns), (own_ns + value + 1e4 * (step % 7)) / 12e6
        )
    assert sweet_point_at(state.spec(spec, own_ns), 1.0) == pytest.approx(6.8e6, rel=0.06)
    # Without a known latency of its own the profile decides.
    assert sweet_point_at(state.spec(SPEC, None), 1.0) == pytest.approx(2.8e6, rel=0.05)


def test_an_objective_that_is_missed_anyway_leaves_what_is_normal() -> None:
    state = learned({1.0: 2e6})
    for step in range(2000):
        value = 2e6 + 8e6 * (step % 100) / 100
        state.relation.add(inflation(SPEC.name, value, 2e6, 5e6), (5e6 + value) / 7.05e6)
    assert sweet_point_at(state.spec(SPEC, 5e6), 1.0) == pytest.approx(2e6, rel=0.1)


@pytest.mark.parametrize(
    ("name", "value", "median"),
    [
        (IndicatorName.RUNQ_P99, 7e6, 2e6),
        (IndicatorName.WAIT_RATIO, 0.2, 0.01),
        (IndicatorName.CPI, 1.5, 1.2),
        (IndicatorName.CPU_PER_PACKET, 9e3, 7e3),
    ],
)
def test_a_value_follows_from_its_inflation(
    name: IndicatorName, value: float, median: float
) -> None:
    x = inflation(name, value, median, 5e6)
    assert x > 0
    assert value_at(name, x, median, 5e6) == pytest.approx(value)


def test_a_record_restores_the_state_through_json() -> None:
    state = learned({0.5: 1.5e6, 4.0: 6e6, 9.0: 1e6}, windows=77)
    state.relation.add(0.3, 0.9)
    record = state.record("web", SPEC.name)
    again = State.restored(record)
    assert again.record("web", SPEC.name) == record
    assert again.spec(SPEC, None) == state.spec(SPEC, None)
    assert len(json.dumps(record)) < 3000


def test_a_state_holds_for_one_image_and_one_cpu() -> None:
    state = State("cpu", "image", 2.0)
    assert state.keep_for("cpu", "image", 2.0)
    assert state.keep_for("cpu", "", 2.0)  # a pod that the API server does not list now
    assert state.keep_for("", "image", 2.0)  # the file of the CPU model cannot be read
    assert not state.keep_for("cpu", "other", 2.0)
    assert not state.keep_for("another cpu", "image", 2.0)
    assert not state.keep_for("cpu", "image", 1.5)
    unknown = State("", "", 2.0)
    assert unknown.keep_for("cpu", "image", 2.0)
    assert (unknown.cpu_model, unknown.image) == ("cpu", "image")


def test_a_rollout_ends_what_was_learned_when_the_old_image_is_gone() -> None:
    state = State("cpu", "app:1 proxy:1", 2.0)
    assert state.keep_for("cpu", "app:1 app:2 proxy:1", 2.0)
    assert state.image == "app:1 proxy:1"
    assert not state.keep_for("cpu", "app:2 proxy:1", 2.0)
    assert state.keep_for("cpu", "app:1", 2.0)
    assert not state.keep_for("cpu", "app:2", 2.0)


def test_another_objective_ends_the_relation() -> None:
    state = learned({1.0: 2e6})
    state.relate_to(5e6)
    state.relation.add(0.3, 0.9)
    state.relate_to(None)
    state.relate_to(5e6)
    again = State.restored(state.record("web", SPEC.name))
    again.relate_to(5e6)
    assert state.relation.pairs == again.relation.pairs == 1.0
    again.relate_to(10e6)
    assert again.relation.pairs == 0.0
    assert again.windows == state.windows


def test_a_new_load_takes_the_place_of_the_one_not_seen_for_longest() -> None:
    state = learned({2.0**n: 2e6 for n in range(12)}, windows=1000)
    for _ in range(100):
        for load in (1.0, 2.0**20, 2.0**22):
            state.add(2e6, load, SPEC.resolution, NS_PER_SEC)
    windows = {number: normal.windows for number, normal in state.loads.items()}
    assert (windows[0], windows[40], windows[44]) == (1100, 100, 100)
    assert {2, 4}.isdisjoint(windows)
    assert len(windows) == 12


@pytest.mark.parametrize("tolerance", [1.01, 1.1, 2.0])
def test_values_far_from_one_are_learned_at_any_tolerance(tolerance: float) -> None:
    spec = replace(SPEC, sweet_point=None, tolerance=tolerance)
    assert points(learned({1.0: 3e9}, spec), [1.0], spec) == [pytest.approx(4.2e3, rel=0.05)]


def test_the_number_of_loads_is_bounded() -> None:
    state = learned({2.0**n: 2e6 for n in range(40)}, windows=11)
    state.add(2e6, 1e300, 1.0, NS_PER_SEC)
    state.add(2e6, 1e-300, 1.0, NS_PER_SEC)
    assert len(state.loads) == 12


@pytest.mark.parametrize(
    "change",
    [
        {"tolerance": math.nan},
        {"tolerance": 1.0},
        {"tolerance": -2.0},
        {"tolerance": 0.5},
        {"objective": math.nan},
        {"sums": (math.inf,)},
        {"sums": (0.0, 1e300)},
        {"kept": ((1, math.nan),)},
        {"loads": (LearnedLoad(1, 5, math.inf, 1.0, False, ((), ())),)},
        {"loads": (LearnedLoad(1, 5, 62525.0, 1.0, True, ((), ())),)},
        {"loads": (LearnedLoad(1, 5, 1.0, -62525.0, True, ((), ())),)},
        {"loads": (LearnedLoad(1, -5, 1.0, 1.0, False, ((), ())),)},
        {"loads": (LearnedLoad(1, 10**400, 1.0, 1.0, False, ((), ())),)},
        {"loads": (LearnedLoad(5000, 5, 1.0, 1.0, False, ((), ())),)},
        {"loads": (LearnedLoad(-3_000_000, 5, 1.0, 1.0, False, ((), ())),)},
        {"loads": (LearnedLoad(1, 5, 1.0, 1.0, True, (((1, math.nan),), ())),)},
        {"loads": (LearnedLoad(1, 5, 1.0, 1.0, True, ((), ())),) * 14},
        {"loads": (LearnedLoad(1, 5, 1.0, None, True, ((), ())),)},
    ],
)
def test_a_record_with_impossible_numbers_is_not_sane(change: dict[str, object]) -> None:
    good = LearnedIndicator("web", SPEC.name, "cpu", "image", 2.0)
    assert good.is_sane
    assert not good._replace(**change).is_sane  # type: ignore[arg-type]
