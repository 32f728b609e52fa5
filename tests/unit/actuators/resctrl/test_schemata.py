# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Canonical form and comparison of resctrl.l3 and resctrl.mb."""

import pytest

from actuators.resctrl.schemata import ResctrlL3, ResctrlMb
from controller.core.model import KnobValue

MB, L3 = ResctrlMb(), ResctrlL3()


@pytest.mark.parametrize(
    ("knob", "value", "written"),
    [
        (MB, "1=20;0=100", "0=100;1=20"),
        (L3, "0=7FF;1=00f", "0=7ff;1=f"),
    ],
)
def test_schemata_are_written_in_canonical_form(
    knob: ResctrlMb | ResctrlL3, value: str, written: str
) -> None:
    (step,) = knob.steps(KnobValue("0=1;1=1"), KnobValue(value))
    assert (step.text, step.state) == (written, written)
    assert knob.steps(step.state, KnobValue(value)) == ()


def test_with_unknown_granularity_only_an_equal_bandwidth_matches() -> None:
    assert MB.matches(KnobValue("0=20;1=30"), KnobValue("0=20;1=30"))
    assert not MB.matches(KnobValue("0=20"), KnobValue("0=21"))
    assert not MB.matches(KnobValue("0=20"), KnobValue("0=20;1=20"))
