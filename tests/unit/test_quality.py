# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The three verdicts of tests that judge by real time."""

from collections.abc import Iterator

import pytest

from tests.support.quality import EXIT_TOO_BUSY, CpuTimes, Quality, read_cpu_times, why_busy

TEST = """
import pytest

@pytest.mark.timed
def test_quick(): pass

@pytest.mark.timed
def test_slow(): assert False, "too slow"

def test_untimed(): pass
"""


def looks(*steps: tuple[int, int]) -> Iterator[CpuTimes]:
    """Yield readings 100 ticks apart, of which each step's share was idle and stolen."""
    now = CpuTimes(0, 0, 0)
    yield now
    for idle, stolen in steps:
        now = CpuTimes(now.total + 100, now.idle + idle, now.stolen + stolen)
        yield now


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([(98, 0), (0, 0), (98, 0)], ""),
        ([(98, 0), (0, 2), (98, 0)], ""),
        ([(98, 0), (0, 3), (98, 0)], "the hypervisor took 3.0% of the CPU time"),
        ([(80, 0), (0, 0), (98, 0)], "other programs used 20% of the CPUs just before the test"),
        ([(98, 0), (0, 0), (50, 0)], "other programs used 50% of the CPUs just after the test"),
    ],
)
def test_reason(steps: list[tuple[int, int]], reason: str) -> None:
    before, begin, end, after = looks(*steps)
    assert why_busy(before, (begin, end), after) == reason


def test_the_kernels_counts_are_read() -> None:
    first, last = read_cpu_times(), read_cpu_times()
    assert 0 < first.idle < first.total <= last.total
    assert 0 <= first.stolen <= last.stolen


@pytest.mark.parametrize(
    ("idle", "code", "lines"),
    [
        (98, pytest.ExitCode.TESTS_FAILED, ["passed: 1", "fell short: 1", "*to tell: 0"]),
        (50, EXIT_TOO_BUSY, ["passed: 1", "fell short: 0", "*to tell: 1", "*other programs used*"]),
    ],
)
def test_verdicts(pytester: pytest.Pytester, idle: int, code: int, lines: list[str]) -> None:
    pytester.makeini("[pytest]\nmarkers =\n    timed: for this test\n")
    pytester.makepyfile(TEST)
    # Two looks before each of the two timed tests, two more around the end of the failed one.
    plugin = Quality(iter(looks(*[(idle, 0)] * 6)).__next__, lambda _: None)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", plugins=[plugin])
    assert result.ret == code
    result.stdout.fnmatch_lines(lines)
