# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Amounts as text."""

import pytest

from controller.core.units import count, format_bytes, format_cpus, format_duration


@pytest.mark.parametrize(
    ("cpus", "text"),
    [(0.0, "0.00cpu"), (0.0005, "0.5mcpu"), (0.001, "1mcpu"), (0.01, "0.01cpu"), (1.5, "1.50cpu")],
)
def test_an_amount_of_cpus_is_never_rounded_to_none(cpus: float, text: str) -> None:
    assert format_cpus(cpus) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0.0, "0ns"), (999.4, "999ns"), (740e3, "740us"), (999.6e3, "1ms"), (1.9e6, "1.9ms"),
     (999.4e6, "999ms"), (999.6e6, "1s"), (2.5e9, "2.5s"), (7200e9, "7200s")],
)  # fmt: skip
def test_durations_have_three_digits_and_no_exponent(ns: float, text: str) -> None:
    assert format_duration(ns) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 workloads"), (1, "1 workload"), (1200, "1,200 workloads")]
)
def test_a_noun_follows_its_number(number: int, text: str) -> None:
    assert count(number, "workload") == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0B"),
        (1023, "1023B"),
        (1.5 * 2**20, "1.5MiB"),
        (809.3 * 2**20, "809MiB"),
        (999.6 * 2**20, "999.6MiB"),
        (1003 * 2**20, "1003MiB"),
        (2**30, "1GiB"),
    ],
)
def test_bytes_have_no_exponent(size: float, text: str) -> None:
    assert format_bytes(size) == text
