# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of the channels' ladders, one by one."""

from dataclasses import replace
import math

import pytest

from controller.core.control.channel_loops import ChannelLoops
from controller.core.control.indicator_routing import IndicatorRouting
from controller.core.control.limiters import StepSelector
from controller.core.control.resource_usage import UsageTracker
from controller.core.control.rungs.allocator import ProportionalAllocator
from controller.core.control.rungs.mba_curve import MbaCurve
from controller.core.knob_values import (
    format_bandwidth,
    format_disks,
    format_masks,
    is_stricter,
    lowest_ways,
    parse_amount,
    parse_bandwidth,
    parse_disks,
    parse_masks,
)
from controller.core.model import (
    CgroupId,
    Channel,
    IndicatorName,
    Knob,
    KnobValue,
    QosClass,
    Workload,
)
from controller.core.settings import MbaUnit, ResctrlFacts
from controller.core.workload_index import WorkloadIndex
from tests.closed_loop import make_settings, make_spec

SECOND_NS = 1_000_000_000
PERCENT = ResctrlFacts(domains=(0,), mba_min=10, mba_max=100, mba_step=10, bandwidth=True)


def test_schemata_text() -> None:
    assert parse_bandwidth(KnobValue("0=50;1=100")) == {0: 50, 1: 100}
    assert format_bandwidth({1: 100, 0: 50}) == "0=50;1=100"
    assert parse_masks(KnobValue("0=7ff;1=f")) == {0: 0x7FF, 1: 0xF}
    assert format_masks({10: 0xFF, 2: 0x3}) == "2=3;10=ff"
    with pytest.raises(ValueError, match="invalid literal"):
        parse_bandwidth(KnobValue("MB"))


@pytest.mark.parametrize(
    ("mask", "ways", "expected"),
    [(0x7FF, 4, 0xF), (0x7F0, 2, 0x30), (0b110111, 3, 0b111), (0b1011, 3, 0b1011), (0x3, 2, 0x3)],
)
def test_best_effort_gets_the_lowest_adjacent_ways(mask: int, ways: int, expected: int) -> None:
    assert lowest_ways(mask, ways) == expected


def test_amounts_and_disks() -> None:
    assert parse_amount(KnobValue("max")) == math.inf
    assert parse_disks(KnobValue("max")) == {}
    text = KnobValue("8:0 rbps=1000 wiops=20;8:16 wbps=5")
    assert format_disks(parse_disks(text)) == text
    assert parse_disks(KnobValue("8:0 rbps=max wbps=7")) == {("8:0", "wbps"): 7.0}
    assert format_disks({}) == "max"


@pytest.mark.parametrize(
    ("knob", "strict", "lax"),
    [
        (Knob.MBA, "0=50;1=50", "0=60;1=50"),
        (Knob.LLC_WAYS, "0=3;1=f", "0=f;1=f0"),
        (Knob.TC_CEILING, "1000 0", "2000 0"),
        (Knob.MEMORY_HIGH, "1000", "max"),
        (Knob.IO_WEIGHT, "50", "100"),
        (Knob.IO_MAX, "8:0 rbps=100", "max"),
        (Knob.CORE_COOKIE, "best-effort", "0"),
    ],
)
def test_strictness_of_every_knob(knob: Knob, strict: str, lax: str) -> None:
    assert is_stricter(knob, KnobValue(strict), KnobValue(lax))
    assert not is_stricter(knob, KnobValue(lax), KnobValue(strict))
    assert not is_stricter(knob, KnobValue(lax), KnobValue(lax))


def test_what_is_stricter_in_one_place_and_laxer_in_another_is_not_stricter() -> None:
    assert not is_stricter(Knob.MBA, KnobValue("0=50;1=90"), KnobValue("0=60;1=80"))
    assert not is_stricter(Knob.IO_MAX, KnobValue("8:0 rbps=1"), KnobValue("8:16 rbps=1"))
    assert not is_stricter(Knob.TC_TREE, KnobValue("absent"), KnobValue("htb"))


def test_a_setting_is_held_and_held_longer_when_it_was_needed_again_soon() -> None:
    steps = StepSelector(10 * SECOND_NS, 1000 * SECOND_NS)
    edges = [0.0, 0.5, 1.0]

    def level_at(second: int, part: float) -> int:
        steps.set_part(part, edges, second * SECOND_NS)
        return steps.level

    assert level_at(0, 0.7) == 2
    assert steps.set_part(0.2, edges, 9 * SECOND_NS) == 0.5
    assert level_at(10, 0.2) == 1
    assert level_at(40, 0.7) == 2
    assert level_at(59, 0.2) == 2
    assert level_at(60, 0.2) == 1


def test_half_the_bandwidth_is_half_whatever_the_percent_scale_does() -> None:
    """50 % leaves nine tenths: so half is looked for, and found, further down."""
    scale = MbaCurve()
    user = CgroupId("cpu", 1)
    real = {100: 10e9, 50: 9e9, 20: 5e9}
    now_ns = 0
    for value in (100, 50, 20):
        for _ in range(60):
            now_ns += SECOND_NS
            scale.update(value, PERCENT, {user: real[value]}, now_ns)
    assert scale.part_at(100) == 1.0
    assert scale.part_at(50) == pytest.approx(0.9)
    assert scale.part_at(20) == pytest.approx(0.5)
    # What was not tried lies on the line between.
    assert scale.part_at(30) == pytest.approx(0.5 + 0.4 / 3)
    assert scale.part_at(10) == pytest.approx(0.25)


def test_a_program_that_has_nothing_to_do_teaches_nothing() -> None:
    scale = MbaCurve()
    user = CgroupId("cpu", 1)
    for second in range(60):
        scale.update(100, PERCENT, {user: 10e9}, second * SECOND_NS)
    for second in range(60, 200):
        scale.update(50, PERCENT, {user: 0.1e9}, second * SECOND_NS)
    assert scale.part_at(50) == 0.5


def test_without_a_measurement_the_scale_is_believed() -> None:
    scale = MbaCurve()
    for second in range(60):
        scale.update(40, PERCENT, {}, second * SECOND_NS)
    assert scale.part_at(40) == 0.4


@pytest.mark.parametrize(("unit", "value"), [(MbaUnit.ABSOLUTE, 40), (MbaUnit.MBPS, 4768)])
def test_absolute_units_are_parts_of_what_is_used(unit: MbaUnit, value: int) -> None:
    facts = ResctrlFacts(domains=(0,), mba_unit=unit, mba_min=1, mba_max=1 << 20, bandwidth=True)
    scale = MbaCurve()
    for second in range(10):
        scale.update(1 << 20, facts, {CgroupId("cpu", 1): 10e9}, second * SECOND_NS)
    assert scale.part_at(value) == pytest.approx(0.5, rel=0.01)


def test_what_the_squeezed_would_use_is_not_forgotten_soon() -> None:
    use = UsageTracker()
    for second in range(10):
        use.update([("batch", True, second * 800), ("web", False, second * 200)], 1.0, False)
    assert use.share == pytest.approx(0.8)
    count = 9 * 800
    for second in range(10, 70):
        count += 80
        use.update([("batch", True, count), ("web", False, second * 200)], 1.0, True)
    assert use.share == pytest.approx(0.78, abs=0.02)
    for second in range(70, 190):
        count += 80
        use.update([("batch", True, count), ("web", False, second * 200)], 1.0, False)
    assert use.share == pytest.approx(0.29, abs=0.03)


def test_nothing_measured_is_no_share() -> None:
    use = UsageTracker()
    use.update([], 1.0, False)
    assert use.share is None
    use.update([("batch", True, 100)], 1.0, False)
    assert use.share is None


def test_floors_together_leave_a_squeeze_its_bite() -> None:
    """A hundred workloads with a floor of 50 mcpu each would be promised five CPUs."""
    rung = ProportionalAllocator(2.0, 0.01)
    use = {CgroupId("cpu", n): 0.02 for n in range(100)}
    for second in range(1, 5):
        rung.ceiling.update(second * SECOND_NS, 1.0, 2.0, 0.1)
        grants = rung.update(1.0, lambda: use, len(use), {}, frozenset(), 0.05, second * SECOND_NS)
    assert rung.total == pytest.approx(1.0)
    assert all(cpus == pytest.approx(0.01) for cpus in grants.values())


def test_a_services_own_figure_has_a_channel_even_without_cpu() -> None:
    own = replace(make_spec(), name=IndicatorName.SERVICE)
    profile = replace(
        make_settings().profiles["default"], indicators=(own,), channels=(Channel.CACHE, Channel.IO)
    )
    web = Workload("web", CgroupId("cpu", 1), "/web", QosClass.LS, "web", "default")
    settings = make_settings()
    loops = {channel: ChannelLoops(channel, settings) for channel in Channel}
    specs = IndicatorRouting().update(WorkloadIndex([web], {"default": profile}), loops, 0)
    assert {channel: dict(each) for channel, each in specs.items() if each} == {
        Channel.CACHE: {"web": (own,)}
    }
