# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Steal from files in the form of /proc/stat."""

import os
from pathlib import Path

import pytest

from controller.core.units import NS_PER_SEC
from controller.probes.steal import StealMeter

TICK_NS = NS_PER_SEC // os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("line", "steal_ns"),
    [
        ("cpu 1 2 3 4 5 6 7 8 9 10", 8 * TICK_NS),
        ("cpu 1 2 3 4 5 6 7", None),
        ("cpu 1 2 3 4 5 6 7 x 9 10", None),
        ("cpu 1 2 3 4 5 6 7 \xb2 9 10", None),
        ("", None),
    ],
)
def test_the_eighth_field_is_the_steal_or_it_is_unknown(
    tmp_path: Path, line: str, steal_ns: int | None
) -> None:
    (tmp_path / "stat").write_text(f"{line}\nintr 1\n")
    assert StealMeter(tmp_path / "stat").poll(0) == steal_ns


def test_the_file_is_read_once_a_second(tmp_path: Path) -> None:
    file = tmp_path / "stat"
    file.write_text("cpu 1 2 3 4 5 6 7 8\n")
    meter = StealMeter(file)
    meter.poll(0)
    file.write_text("cpu 1 2 3 4 5 6 7 9\n")
    assert meter.poll(NS_PER_SEC - 1) == 8 * TICK_NS
    assert meter.poll(NS_PER_SEC) == 9 * TICK_NS
