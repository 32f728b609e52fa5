# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Parsing, formatting and comparison of knob values."""

import math

from hypothesis import example, given
from hypothesis import strategies as st
import pytest

from actuators.foreign_values import is_quota_or_doubled, original_after
from controller.core.knob_comparison import is_stricter
from controller.core.knob_values import (
    Quota,
    format_bandwidth,
    format_disks,
    format_masks,
    format_quota,
    lowest_ways,
    parse_amount,
    parse_bandwidth,
    parse_disks,
    parse_masks,
    parse_quota,
    quota_for,
)
from controller.core.model import Knob, KnobValue


def test_text_of_quotas() -> None:
    assert parse_quota(KnobValue("max 100000 0")) == Quota(None, 100_000, 0)
    assert parse_quota(KnobValue("5000 10000 200")).cpus == 0.5
    assert format_quota(Quota(None, 100_000, 7)) == "max 100000 7"
    with pytest.raises(ValueError, match="not enough values"):
        parse_quota(KnobValue("max"))


@pytest.mark.parametrize(
    ("cpus", "value"),
    [
        (2.0, "20001 10000 0"),
        (0.5, "5001 10000 0"),
        (0.4567, "4567 10000 0"),
        (0.1025, "1026 10000 0"),
        (0.05, "1001 20000 0"),
        (0.01, "1001 100000 0"),
        (0.001, "1001 1000000 0"),
        (0.0001, "1001 1000000 0"),
    ],
)
def test_quota_periods_are_short_and_quotas_a_millisecond_at_least(cpus: float, value: str) -> None:
    assert format_quota(quota_for(cpus)) == value


@given(st.floats(1e-4, 256.0))
@example(0.02)
@example(0.1025)  # doubled twice 4,100 us, like 41m
def test_no_quota_is_taken_for_a_limit_of_kubelet(cpus: float) -> None:
    quota = quota_for(cpus)
    # The next limits of whole milliCPUs, around the quota and around its doublings.
    for amount_us in ((quota.quota_us or 0) << doublings for doublings in range(7)):
        for limit_us in (amount_us // 100 * 100, -(-amount_us // 100) * 100):
            limit = KnobValue(f"{limit_us} 100000 0")
            assert not is_quota_or_doubled(format_quota(quota), limit, any_period=True)


@given(st.floats(1e-4, 256.0))
def test_a_quota_is_at_least_what_was_asked(cpus: float) -> None:
    assert cpus <= (quota_for(cpus).cpus or 0.0) <= max(0.0011, cpus * 1.005)


def test_text_of_schemata() -> None:
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
def test_lowest_ways_are_the_lowest_run_of_adjacent_bits(
    mask: int, ways: int, expected: int
) -> None:
    assert lowest_ways(mask, ways) == expected


def test_text_of_memory_high_and_io_max() -> None:
    assert parse_amount(KnobValue("max")) == math.inf
    assert parse_disks(KnobValue("max")) == {}
    text = KnobValue("8:0 rbps=1000 wiops=20;8:16 wbps=5")
    assert format_disks(parse_disks(text)) == text
    assert parse_disks(KnobValue("8:0 rbps=max wbps=7")) == {("8:0", "wbps"): 7.0}
    assert format_disks({}) == "max"


def test_strictness_of_quota_and_sched_idle() -> None:
    free, half = KnobValue("max 100000 0"), KnobValue("5000 10000 0")
    assert is_stricter(Knob.CPU_QUOTA, half, free)
    assert not is_stricter(Knob.CPU_QUOTA, free, half)
    assert not is_stricter(Knob.CPU_QUOTA, half, half)
    assert is_stricter(Knob.SCHED_IDLE, KnobValue("1"), KnobValue("0 1024"))
    assert not is_stricter(Knob.SCHED_IDLE, KnobValue("1"), KnobValue("1"))


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
def test_strictness_of_the_other_knobs(knob: Knob, strict: str, lax: str) -> None:
    assert is_stricter(knob, KnobValue(strict), KnobValue(lax))
    assert not is_stricter(knob, KnobValue(lax), KnobValue(strict))
    assert not is_stricter(knob, KnobValue(lax), KnobValue(lax))


def test_a_value_that_is_stricter_and_laxer_in_parts_is_not_stricter() -> None:
    assert not is_stricter(Knob.MBA, KnobValue("0=50;1=90"), KnobValue("0=60;1=80"))
    assert not is_stricter(Knob.IO_MAX, KnobValue("8:0 rbps=1"), KnobValue("8:16 rbps=1"))
    assert not is_stricter(Knob.TC_TREE, KnobValue("absent"), KnobValue("htb"))


def test_the_kernel_doubles_quota_and_period_exactly() -> None:
    ours = KnobValue("1001 13529 0")
    assert is_quota_or_doubled(ours, ours)
    assert is_quota_or_doubled(ours, KnobValue("2002 27058 0"))
    assert is_quota_or_doubled(ours, KnobValue("8008 108232 0"))
    assert not is_quota_or_doubled(ours, KnobValue("500 6764 0"))
    assert not is_quota_or_doubled(ours, KnobValue("max 27058 0"))
    assert not is_quota_or_doubled(ours, KnobValue("4000 27058 0"))
    # The same ratio with another period is a value of another program.
    assert not is_quota_or_doubled(KnobValue("10000 10000 0"), KnobValue("100000 100000 0"))


@pytest.mark.parametrize(
    ("knob", "ours", "found", "original", "expected"),
    [
        # Another program lowered the quota of a service; the burst is ours.
        (Knob.CPU_QUOTA, "max 100000 50000", "300000 100000 50000", "max 100000 0",
         "300000 100000 0"),
        # It gave a limited job another quota; the job's burst was taken by us.
        (Knob.CPU_QUOTA, "5000 10000 0", "70000 100000 0", "90000 100000 9000",
         "70000 100000 9000"),
        (Knob.CPU_QUOTA, "5000 10000 0", "8000 100000 0", "90000 100000 9000", "8000 100000 8000"),
        (Knob.CPU_QUOTA, "5000 10000 0", "max 100000 0", "90000 100000 9000", "max 100000 9000"),
        # It gave the job a burst; the quota is ours.
        (Knob.CPU_QUOTA, "5000 10000 0", "5000 10000 1000", "max 100000 0", "max 100000 1000"),
        # The kernel doubled the quota before.
        (Knob.CPU_QUOTA, "5000 10000 0", "10000 20000 1000", "max 100000 0", "max 100000 1000"),
        # Nothing of it is ours any more.
        (Knob.CPU_QUOTA, "5000 10000 0", "70000 100000 0", "max 100000 0", "70000 100000 0"),
        (Knob.IO_MAX, "8:0 rbps=1000;8:16 rbps=1000", "8:0 rbps=5000;8:16 rbps=1000", "max",
         "8:0 rbps=5000"),
        (Knob.IO_MAX, "8:0 rbps=1000;8:16 rbps=1000", "8:16 rbps=1000", "8:16 wbps=7",
         "8:16 wbps=7"),
        (Knob.IO_MAX, "8:0 rbps=1000 wbps=9", "8:0 rbps=1000 wbps=8", "8:0 rbps=2000",
         "8:0 rbps=2000 wbps=8"),
        (Knob.LLC_WAYS, "0=3;1=3", "0=3", "0=fff;1=fff", "0=fff"),
        (Knob.MBA, "0=10;1=10", "0=10;1=50", "0=100;1=100", "0=100;1=50"),
        (Knob.SCHED_IDLE, "1", "0 512", "0 2", "0 512"),
    ],
)  # fmt: skip
def test_parts_that_another_program_left_are_restored(
    knob: Knob, ours: str, found: str, original: str, expected: str
) -> None:
    values = [KnobValue(each) for each in (found, original)]
    assert original_after(knob, [KnobValue(ours)], *values) == expected
    # A write that was broken off may have left another one of ours.
    assert original_after(knob, [KnobValue(original), KnobValue(ours)], *values) == expected
