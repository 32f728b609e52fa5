# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Quantities of a page have a space and the sign of their unit; names stay as they are."""

import pytest

from controller.page.quantities import cpus_of, lasting, spaced, times


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("400us", "400_µs"),
        ("1.5ms", "1.5_ms"),
        (
            "web 5ms > 2ms, best-effort caused 1% of it",
            "web 5_ms > 2_ms, best-effort caused 1_% of it",
        ),
        ("0.05cpu, idle", "0.05_CPUs, idle"),
        ("2.5mcpu", "2.5_mCPUs"),
        ("(learning, 20%)", "(learning, 20_%)"),
        ("goal 95%: met; 64MiB.", "goal 95_%: met; 64_MiB."),
        ("1.2e+05s", "1.2e+05_s"),
        ("200mbit", "200_Mbit/s"),
        ("-3ms", "-3_ms"),
    ],
)
def test_a_unit_has_a_space_and_its_sign(text: str, shown: str) -> None:
    assert spaced(text) == shown.replace("_", "\N{NO-BREAK SPACE}")


@pytest.mark.parametrize(
    "name", ["job-5s", "v1.5s.x", "shop/5ms", "5s-job", "a5s", "5set", "10:5s", ""]
)
def test_a_name_is_not_changed(name: str) -> None:
    assert spaced(name) == name


def test_figures_have_no_more_digits_than_they_need() -> None:
    assert [times(each) for each in (0.0, 0.756, 9.99, 12.84, 4321.0)] == [
        *("0.00", "0.76", "9.99", "12.8", "4.32e+03"),
    ]
    assert len(times(1.7e308)) < 10
    assert cpus_of(0.05, 2) == "0.05 of 2\N{NO-BREAK SPACE}CPUs"
    assert [
        lasting(each * 10**9).replace("\N{NO-BREAK SPACE}", " ") for each in (0, 99, 100, 9000)
    ] == [
        *("0 s", "99 s", "1 min", "2.5 h"),
    ]
