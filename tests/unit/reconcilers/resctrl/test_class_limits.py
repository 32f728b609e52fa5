# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The values that a class has in each unit of the hardware."""

import pytest

from controller.config.sections.resctrl import ResctrlClass
from controller.core.model import Knob, KnobReading, KnobValue, Target, TargetKind
from controller.core.settings import MbaUnit, ResctrlFacts
from controller.reconcilers.resctrl.class_groups import limit_of

GROUP = Target(TargetKind.RESCTRL_GROUP, "/sys/fs/resctrl", 7, "sweetpoint-gold")


def limit(
    knob: Knob, now: str, facts: ResctrlFacts, l3: tuple[int, int] = (0, 100), mb: int = 100
) -> KnobValue:
    given = ResctrlClass("gold", l3[0] / 100, l3[1] / 100, mb / 100)
    return limit_of(given, KnobReading(GROUP, knob, KnobValue(now), None), facts)


# The first three are the examples that koordlet gives for its mask (CalculateCatL3MaskValue).
@pytest.mark.parametrize(
    ("ways", "l3", "mask"),
    [
        (10, (10, 80), "fe"),
        (11, (10, 50), "3c"),
        (11, (0, 30), "f"),
        (11, (0, 100), "7ff"),
        (20, (55, 60), "800"),
        (11, (99, 100), "400"),
        (11, (0, 1), "1"),
    ],
)
def test_ways_are_those_of_koordlet(ways: int, l3: tuple[int, int], mask: str) -> None:
    facts = ResctrlFacts((0, 1), llc_ways=ways)
    full = f"{(1 << ways) - 1:x}"
    assert limit(Knob.LLC_WAYS, f"0={full};1={full}", facts, l3) == f"0={mask};1={mask}"


def test_a_class_has_at_least_the_ways_that_the_hardware_wants() -> None:
    facts = ResctrlFacts((0,), llc_ways=11, llc_min_ways=2)
    assert limit(Knob.LLC_WAYS, "0=7ff", facts, (99, 100)) == "0=600"


@pytest.mark.parametrize(
    ("unit", "least", "most", "step", "mb", "value"),
    [
        (MbaUnit.PERCENT, 10, 100, 10, 45, 50),
        (MbaUnit.PERCENT, 10, 100, 10, 30, 30),
        (MbaUnit.PERCENT, 20, 100, 10, 5, 20),
        (MbaUnit.PERCENT, 10, 100, 10, 100, 100),
        (MbaUnit.ABSOLUTE, 1, 2048, 1, 25, 512),
        (MbaUnit.MBPS, 1, 4294967295, 1, 25, 4294967295),
    ],
)
def test_bandwidth_is_a_share_of_the_scale(
    unit: MbaUnit, least: int, most: int, step: int, mb: int, value: int
) -> None:
    facts = ResctrlFacts((0,), mba_unit=unit, mba_min=least, mba_max=most, mba_step=step)
    assert limit(Knob.MBA, f"0={most};1={most}", facts, mb=mb) == f"0={value};1={value}"
