# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Amounts as text."""

import pytest

from controller.core.units import format_cpus


@pytest.mark.parametrize(
    ("cpus", "text"),
    [(0.0, "0.00cpu"), (0.0005, "0.5mcpu"), (0.001, "1mcpu"), (0.01, "0.01cpu"), (1.5, "1.50cpu")],
)
def test_an_amount_of_cpus_is_never_rounded_to_none(cpus: float, text: str) -> None:
    assert format_cpus(cpus) == text
