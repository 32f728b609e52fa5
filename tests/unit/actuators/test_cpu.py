# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of cpu.quota and cpu.idle: the writes, their order, and the intermediate values."""

from pathlib import Path
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from actuators.base import Phase
from actuators.cpu import CpuIdle, CpuQuota
from controller.core.model import KnobValue

Version = Literal["v1", "v2"]
VERSIONS: tuple[Version, ...] = ("v1", "v2")


def quota(version: Version) -> CpuQuota:
    return CpuQuota(Path("/nowhere"), "x", version)


def idle(version: Version) -> CpuIdle:
    return CpuIdle(Path("/nowhere"), "x", version)


def writes(knob: CpuQuota | CpuIdle, previous: str, value: str) -> list[tuple[str, str]]:
    return [(s.file, s.text) for s in knob.steps(KnobValue(previous), KnobValue(value))]


@pytest.mark.parametrize(
    ("previous", "value", "expected"),
    [
        ("5000 10000 0", "5000 10000 0", []),
        ("max 10000 0", "5000 10000 0", [("cpu.cfs_quota_us", "5000")]),
        ("5000 10000 0", "max 10000 0", [("cpu.cfs_quota_us", "-1")]),
        (
            "50000 100000 0",
            "5000 10000 0",
            [
                ("cpu.cfs_quota_us", "-1"),
                ("cpu.cfs_period_us", "10000"),
                ("cpu.cfs_quota_us", "5000"),
            ],
        ),
        (
            "max 100000 0",
            "5000 10000 0",
            [("cpu.cfs_period_us", "10000"), ("cpu.cfs_quota_us", "5000")],
        ),
        (
            "5000 10000 0",
            "max 100000 0",
            [("cpu.cfs_quota_us", "-1"), ("cpu.cfs_period_us", "100000")],
        ),
        (
            "50000 100000 20000",
            "10000 100000 0",
            [("cpu.cfs_burst_us", "0"), ("cpu.cfs_quota_us", "10000")],
        ),
        (
            "10000 100000 0",
            "50000 100000 20000",
            [("cpu.cfs_quota_us", "50000"), ("cpu.cfs_burst_us", "20000")],
        ),
    ],
)
def test_v1_quota_writes(previous: str, value: str, expected: list[tuple[str, str]]) -> None:
    assert writes(quota("v1"), previous, value) == expected


@pytest.mark.parametrize(
    ("previous", "value", "expected"),
    [
        ("max 100000 0", "5000 10000 0", [("cpu.max", "5000 10000")]),
        ("5000 10000 0", "max 100000 0", [("cpu.max", "max 100000")]),
        (
            "50000 100000 20000",
            "5000 10000 1000",
            [("cpu.max.burst", "0"), ("cpu.max", "5000 10000"), ("cpu.max.burst", "1000")],
        ),
        ("5000 10000 0", "5000 10000 1000", [("cpu.max.burst", "1000")]),
    ],
)
def test_v2_quota_writes(previous: str, value: str, expected: list[tuple[str, str]]) -> None:
    assert writes(quota("v2"), previous, value) == expected


@pytest.mark.parametrize(
    ("version", "previous", "value", "expected"),
    [
        ("v1", "0 512", "1", [("cpu.idle", "1")]),
        ("v1", "1", "0 512", [("cpu.idle", "0"), ("cpu.shares", "512")]),
        ("v1", "1", "0 1024", [("cpu.idle", "0")]),
        ("v1", "0 512", "0 256", [("cpu.shares", "256")]),
        ("v1", "1", "1", []),
        ("v2", "0 300", "1", [("cpu.idle", "1")]),
        ("v2", "1", "0 300", [("cpu.idle", "0"), ("cpu.weight", "300")]),
        ("v2", "1", "0 100", [("cpu.idle", "0")]),
    ],
)
def test_idle_writes(
    version: Version, previous: str, value: str, expected: list[tuple[str, str]]
) -> None:
    assert writes(idle(version), previous, value) == expected


@pytest.mark.parametrize("value", ["2 100", "idle", ""])
def test_a_text_that_is_no_value_of_the_knob_is_an_error(value: str) -> None:
    with pytest.raises(ValueError):
        idle("v1").steps(KnobValue("0 100"), KnobValue(value))


quotas = st.builds(
    lambda quota_us, period_us, burst: (
        f"{quota_us or 'max'} {period_us} {burst * (quota_us or 0) // 4}"
    ),
    st.one_of(st.none(), st.sampled_from([1000, 5000, 50_000, 400_000])),
    st.sampled_from([1000, 10_000, 100_000, 1_000_000]),
    st.integers(0, 4),
)
weights = st.one_of(st.just("1"), st.sampled_from([2, 99, 100, 1024, 10_000]).map("0 {}".format))


@pytest.mark.parametrize("version", VERSIONS)
@settings(deadline=None)
@given(previous=quotas, value=quotas)
def test_every_step_of_a_quota_is_valid_and_has_the_right_state(
    version: Version, previous: str, value: str
) -> None:
    # The rule of the kernel within a cgroup: a quota is never below the burst.
    files = _quota_files(version, previous)
    for step in quota(version).steps(KnobValue(previous), KnobValue(value)):
        files[step.file] = step.text
        expected = _quota_files(version, step.state)
        if version == "v2" and step.file == "cpu.max":
            assert files["cpu.max"].split()[1] == expected["cpu.max"].split()[1]
        assert files == expected
        limit = step.state.split()[0]
        assert limit == "max" or int(step.state.split()[2]) <= int(limit)
    assert files == _quota_files(version, value)


@pytest.mark.parametrize("version", VERSIONS)
@settings(deadline=None)
@given(previous=weights, value=weights)
def test_every_step_of_idle_is_valid_and_has_the_right_state(
    version: Version, previous: str, value: str
) -> None:
    state = previous
    for step in idle(version).steps(KnobValue(previous), KnobValue(value)):
        # The weight of an idle cgroup cannot be written.
        assert step.file == "cpu.idle" or state != "1"
        state = step.state
    assert state == value


def _quota_files(version: Version, value: str) -> dict[str, str]:
    limit, period, burst = value.split()
    if version == "v2":
        return {"cpu.max": f"{limit} {period}", "cpu.max.burst": burst}
    limit = "-1" if limit == "max" else limit
    return {"cpu.cfs_quota_us": limit, "cpu.cfs_period_us": period, "cpu.cfs_burst_us": burst}


@pytest.mark.parametrize(
    ("found", "same"),
    [
        ("5000 10000 500", True),
        ("10000 20000 1000", True),
        ("40000 80000 4000", True),
        ("10000 20000 500", False),
        ("10000 10000 500", False),
        ("2500 5000 250", False),
        ("max 10000 500", False),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_quota_doubled_by_the_kernel_matches(version: Version, found: str, same: bool) -> None:
    assert quota(version).matches(KnobValue("5000 10000 500"), KnobValue(found)) is same


@pytest.mark.parametrize(
    ("expected", "found", "same"),
    [
        ("5000 10000 0", "5000 100000 0", True),
        ("5000 10000 0", "10000 100000 0", True),  # doubled before
        ("5000 10000 0", "6000 100000 0", False),
        ("max 10000 0", "max 100000 0", False),
        ("max 10000 0", "5000 100000 0", False),
    ],
)
def test_on_v1_a_quota_is_ours_under_the_period_of_another_program(
    expected: str, found: str, same: bool
) -> None:
    assert quota("v1").matches(KnobValue(expected), KnobValue(found)) is same
    assert not quota("v2").matches(KnobValue(expected), KnobValue(found))


def test_the_kernel_does_not_double_past_its_longest_period() -> None:
    expected = KnobValue("300000 600000 0")
    assert not quota("v1").matches(expected, KnobValue("600000 1200000 0"))
    assert not quota("v1").matches(KnobValue("max 10000 0"), KnobValue("max 20000 0"))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("previous", "value", "phase"),
    [
        ("400000 100000 0", "max 100000 0", Phase.ANY),
        ("50000 100000 0", "4999 10000 0", Phase.TIGHTEN),
        ("50000 100000 0", "5000 10000 0", Phase.LOOSEN),
        ("50000 100000 0", "5001 10000 0", Phase.LOOSEN),
        ("max 100000 0", "4000 100000 0", Phase.LOOSEN),
    ],
)
def test_phase_of_a_quota(version: Version, previous: str, value: str, phase: Phase) -> None:
    assert quota(version).phase(KnobValue(previous), KnobValue(value)) is phase


@pytest.mark.parametrize("version", VERSIONS)
def test_cgroups_turn_idle_before_others_turn_normal(version: Version) -> None:
    assert idle(version).phase(KnobValue("0 2"), KnobValue("1")) is Phase.TIGHTEN
    assert idle(version).phase(KnobValue("1"), KnobValue("0 2")) is Phase.LOOSEN


def test_the_state_of_shares_out_of_range_is_clamped_as_by_the_kernel() -> None:
    steps = idle("v1").steps(KnobValue("0 100"), KnobValue("0 1"))
    assert [s.state for s in steps] == ["0 2"]
