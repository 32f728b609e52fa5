# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The unit of each indicator's sweet point, and the defaults of its fields."""

from typing import Any

import pytest

from controller.config.indicator import read_indicator
from controller.config.models import IndicatorModel
from controller.core.model import Channel, IndicatorName
from controller.core.settings import IndicatorSpec, LoadBin
from controller.core.tuning import auto_gains

TICK_NS = 200_000_000
S = 1_000_000_000


def read(name: str, **fields: Any) -> tuple[IndicatorSpec | None, list[tuple[str, str]]]:
    problems: list[tuple[str, str]] = []
    spec = read_indicator(
        IndicatorName(name),
        IndicatorModel.model_validate(fields),
        TICK_NS,
        lambda loc, message: problems.append((".".join(loc), message)),
    )
    return spec, problems


def good(name: str, **fields: Any) -> IndicatorSpec:
    spec, problems = read(name, **fields)
    assert problems == []
    assert spec is not None
    return spec


@pytest.mark.parametrize(
    ("name", "text", "value", "channel", "tolerance", "min_samples", "is_time"),
    [
        ("runq_p50", "1ms", 1e6, Channel.CPU, 2.0, 20, True),
        ("runq_p95", "1ms", 1e6, Channel.CPU, 2.0, 20, True),
        ("runq_p99", "1ms", 1e6, Channel.CPU, 2.0, 20, True),
        ("runq_delay_p99", "1ms", 1e6, Channel.CPU, 2.0, 0, True),
        ("wait_ratio", "5%", 0.05, Channel.CPU, 2.0, 0, False),
        ("cpi", 1.35, 1.35, Channel.CACHE, 1.1, 1000, False),
        ("llc_mpki", "4", 4.0, Channel.CACHE, 1.5, 1000, False),
        ("cpu_per_packet", "8us", 8e3, Channel.CACHE, 1.15, 100, True),
        ("net_rate", "200mbit", 25e6, Channel.NETWORK, 2.0, 0, False),
        ("net_backlog", "2ms", 2e6, Channel.NETWORK, 2.0, 0, True),
        ("net_drops", "0.1%", 0.001, Channel.NETWORK, 2.0, 100, False),
        ("psi_cpu", "10%", 0.1, Channel.CPU, 2.0, 0, False),
        ("psi_memory", "10%", 0.1, Channel.MEMORY, 2.0, 0, False),
        ("refaults", "500/s", 500.0, Channel.MEMORY, 2.0, 0, False),
        ("psi_io", "10%", 0.1, Channel.IO, 2.0, 0, False),
        ("service", "5ms", 5e6, Channel.CPU, 2.0, 0, True),
        ("service", 120, 120.0, Channel.CPU, 2.0, 0, False),
    ],
)
def test_each_indicator_has_its_unit_and_its_defaults(
    name: str,
    text: str | float,
    value: float,
    channel: Channel,
    tolerance: float,
    min_samples: int,
    is_time: bool,
) -> None:
    spec = good(name, sweet_point=text)
    assert (spec.sweet_point, spec.channel, spec.tolerance) == (value, channel, tolerance)
    assert (spec.min_samples, spec.is_time) == (min_samples, is_time)
    assert 0 < spec.resolution < value
    chosen = {} if name == "service" else {"channel": "memory"}
    other = good(name, sweet_point=text, tolerance=3.0, **chosen)
    assert other.tolerance == 3.0
    assert other.channel is (Channel.MEMORY if chosen else channel)


def test_windows_and_gains_depend_on_the_period_of_readings() -> None:
    assert good("cpi", sweet_point=1).window_ns == S
    assert good("service", sweet_point=1).window_ns == 5 * S
    pressure = good("psi_io", sweet_point="10%")
    assert pressure.window_ns == 2 * S
    assert pressure.gains == auto_gains(2 * S, S, 4 * S)
    _, problems = read("psi_io", sweet_point="10%", window="500ms")
    assert problems == [("window", "must be at least 1s: the indicator is read once a second")]


def test_sweet_points_by_load() -> None:
    bins = [{"above": "500mcpu", "sweet_point": 1.2}, {"above": "2cpu", "sweet_point": 1.6}]
    assert good("cpi", sweet_point=1.1, bins=bins).bins == (LoadBin(0.5, 1.2), LoadBin(2.0, 1.6))
    busy = [{"above": "5000/s", "sweet_point": "6us"}]
    per_packet = good("cpu_per_packet", sweet_point="8us", bins=busy)
    assert per_packet.bins == (LoadBin(5000.0, 6e3),)


LEARNED = ("runq_p50", "runq_p95", "runq_p99", "runq_delay_p99", "wait_ratio", "cpi", "llc_mpki")


@pytest.mark.parametrize(
    "name", [*LEARNED, "cpu_per_packet", "psi_cpu", "psi_memory", "refaults", "psi_io"]
)
def test_a_sweet_point_that_is_learned(name: str) -> None:
    spec = good(name, sweet_point="learn")
    assert (spec.learn, spec.sweet_point) == (True, None)
    assert good(name, sweet_point={"learn": True}) == spec
    assert spec.is_time is name.startswith(("runq", "cpu_per"))


def test_a_sweet_point_until_the_learned_one_is_sure() -> None:
    spec = good("runq_p99", sweet_point={"learn": True, "until_sure": "4ms"})
    assert (spec.learn, spec.sweet_point) == (True, 4e6)
    assert not good("runq_p99", sweet_point="4ms").learn


def test_a_learned_wait_has_a_least_sweet_point() -> None:
    for until_sure, least_ns in (("4ms", 1e6), ("300us", 3e5)):
        point = {"learn": True, "until_sure": until_sure}
        assert good("runq_delay_p99", sweet_point=point).least == least_ns
    assert good("cpu_per_packet", sweet_point={"learn": True, "until_sure": "9us"}).least == 0


def test_the_sweet_point_of_an_objective_lies_below_it() -> None:
    spec = good("service", sweet_point={"objective": "10ms"})
    assert spec.objective == 10e6
    assert spec.sweet_point == pytest.approx(8e6, rel=0.01)
    assert (spec.is_time, spec.learn) == (True, False)
    of_a_number = good("service", sweet_point={"objective": 120})
    assert (of_a_number.objective, of_a_number.is_time) == (120.0, False)
    assert good("service", sweet_point="10ms").objective is None


def test_how_far_above_normal_a_learned_sweet_point_lies() -> None:
    assert good("cpi", sweet_point="learn").allow == 0.25
    assert good("runq_p99", sweet_point="learn").allow == 1.0
    assert good("cpi", sweet_point={"learn": True, "allow": "8%"}).allow == 0.08


@pytest.mark.parametrize(
    ("name", "fields", "where", "message"),
    [
        ("cpi", {"sweet_point": -1}, "sweet_point", "'-1' is not a number without a unit such"),
        (
            "cpi",
            {"sweet_point": "0.005"},
            "resolution",
            "must be above 0 and below the sweet point",
        ),
        ("cpi", {"sweet_point": 1, "resolution": "1us"}, "resolution", "'1us' is not a number"),
        ("service", {"sweet_point": "5kg"}, "sweet_point", "'5kg' is not a duration such as"),
        ("service", {"sweet_point": 0}, "resolution", "must be above 0 and below the sweet point"),
        (
            "service",
            {"sweet_point": 5, "channel": "cache"},
            "channel",
            "cannot be set: the channel whose own indicators are worst is used",
        ),
        (
            "psi_io",
            {"sweet_point": "1%", "min_samples": 3},
            "min_samples",
            "psi_io is not computed",
        ),
        (
            "psi_io",
            {"sweet_point": "1%", "bins": [{"above": "1cpu", "sweet_point": "2%"}]},
            "bins",
            "psi_io has one sweet point for all loads; see cpi, llc_mpki, cpu_per_packet",
        ),
        (
            "cpi",
            {"sweet_point": 1, "bins": [{"above": "1cpu", "sweet_point": 2}] * 2},
            "bins",
            "must be above 0 and ordered by 'above', lowest first",
        ),
        (
            "cpi",
            {"sweet_point": 1, "bins": [{"above": "100/s", "sweet_point": 2}]},
            "bins",
            "'100/s' is not an amount of CPU such as",
        ),
        (
            "cpu_per_packet",
            {"sweet_point": "8us", "bins": [{"above": "1cpu", "sweet_point": "7us"}]},
            "bins",
            "'1cpu' is not a rate such as 2/s",
        ),
        ("service", {"sweet_point": "learn"}, "sweet_point", "service needs a value; runq_p50"),
        (
            "runq_p99",
            {"sweet_point": {"objective": "2ms"}},
            "sweet_point",
            "an objective is for service only",
        ),
        (
            "service",
            {"sweet_point": {"objective": "2 cm"}},
            "sweet_point.objective",
            "'2 cm' is not",
        ),
        ("net_rate", {"sweet_point": "learn"}, "sweet_point", "net_rate needs a value; runq_p50"),
        (
            "cpi",
            {"sweet_point": {"learn": True, "until_sure": "2ms"}},
            "sweet_point.until_sure",
            "'2ms' is not a number without a unit",
        ),
        (
            "cpi",
            {"sweet_point": {"learn": True, "until_sure": 0.001}},
            "resolution",
            "must be above 0 and below the sweet point",
        ),
        (
            "cpi",
            {"sweet_point": "learn", "bins": [{"above": "1cpu", "sweet_point": 2}]},
            "bins",
            "cannot be set where the sweet point is learned",
        ),
        (
            "cpu_per_packet",
            {"sweet_point": "8us", "window": "500ms"},
            "window",
            "must be at least 1s",
        ),
        (
            "cpi",
            {"sweet_point": 1, "bins": [{"above": "1cpu", "sweet_point": "0.01"}]},
            "resolution",
            "must be above 0 and below the sweet point",
        ),
        (
            "cpi",
            {"sweet_point": 1, "bins": [{"above": "1cpu", "sweet_point": "2ms"}]},
            "bins",
            "'2ms' is not a number without a unit",
        ),
    ],
)
def test_one_mistake(name: str, fields: dict[str, Any], where: str, message: str) -> None:
    _, problems = read(name, **fields)
    assert len(problems) == 1
    assert problems[0][0] == where
    assert problems[0][1].startswith(message)
