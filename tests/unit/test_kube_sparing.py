# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the owners of pods can do to the log."""

import logging

import pytest

from controller.kube.client.rate_limit import RateLimitedLogger


def test_a_flood_is_cut_off_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    sparing = RateLimitedLogger(logging.getLogger("x"), lambda: now_s)
    for number in range(100_000):
        sparing.warning(f"line {number}")
        now_s += 0.01
    lines = [record.getMessage() for record in caplog.records]
    assert lines[:250] == [f"line {number}" for number in range(250)]
    # A thousand seconds, ten for each line, and each is preceded by what was left out.
    left_out = [line for line in lines if line.endswith("there are too many")]
    assert 95 <= len(left_out) <= 100
    assert len(lines) == 250 + 2 * len(left_out)
