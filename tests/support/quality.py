# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Verdicts of tests that judge by real time: passed, fell short, machine too busy to tell.

These tests have the marker ``timed`` or ``bench``. A failed one says something about the product
only if the machine was quiet. So the plugin measures what the hypervisor stole during the test,
and what other programs used just before and just after it.
"""

from collections.abc import Callable, Generator
from pathlib import Path
import time
from typing import Any, NamedTuple

import pytest

__all__ = ("EXIT_TOO_BUSY", "CpuTimes", "Quality", "read_cpu_times", "why_busy")

# EX_TEMPFAIL of sysexits.h: the same command may have another result later.
EXIT_TOO_BUSY = 75
# A p99 of 1 ms does not bear more than a few stolen milliseconds a second; an idle machine of the
# project has 0.2 % of steal and 2 % of other work.
_MOST_STOLEN_RATIO = 0.02
_MOST_FOREIGN_RATIO = 0.10
_LOOK_S = 0.5
_TOO_BUSY = "too busy"


class CpuTimes(NamedTuple):
    """The first line of /proc/stat, in ticks since boot: all CPUs together."""

    total: int
    idle: int
    stolen: int


def read_cpu_times() -> CpuTimes:
    """Read /proc/stat (``show_stat`` in fs/proc/stat.c: user to steal are fields 1 to 8)."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return CpuTimes(sum(fields), fields[3] + fields[4], fields[7])


def why_busy(before: CpuTimes, during: tuple[CpuTimes, CpuTimes], after: CpuTimes) -> str:
    """Return why a test could not be judged, or "".

    *during* is from the begin and the end of the test, *before* and *after* are from ``_LOOK_S``
    before and after it.
    """
    begin, end = during
    stolen_ratio = (end.stolen - begin.stolen) / max(1, end.total - begin.total)
    if stolen_ratio > _MOST_STOLEN_RATIO:
        return f"the hypervisor took {stolen_ratio:.1%} of the CPU time"
    for when, first, last in (("before", before, begin), ("after", end, after)):
        foreign_ratio = 1 - (last.idle - first.idle) / max(1, last.total - first.total)
        if foreign_ratio > _MOST_FOREIGN_RATIO:
            return f"other programs used {foreign_ratio:.0%} of the CPUs just {when} the test"
    return ""


class Quality:
    """Plugin of pytest: the third verdict, and a report of all three."""

    def __init__(
        self,
        read: Callable[[], CpuTimes] = read_cpu_times,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._read, self._sleep = read, sleep
        self._passed: list[str] = []
        self._short: list[str] = []
        self._busy: dict[str, str] = {}
        self._reasons: dict[str, str] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if not _judges_by_time(item):
            return (yield)
        item.stash[_LOOKS] = [self._read()]
        self._sleep(_LOOK_S)
        item.stash[_LOOKS].append(self._read())
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if _judges_by_time(item) and report.when == "call":
            self._judge(item, report)
        return report

    def _judge(self, item: pytest.Item, report: pytest.TestReport) -> None:
        if report.passed:
            self._passed.append(item.nodeid)
        if not report.failed:
            return
        before, begin = item.stash[_LOOKS]
        end = self._read()
        self._sleep(_LOOK_S)
        reason = why_busy(before, (begin, end), self._read())
        if not reason:
            self._short.append(item.nodeid)
            return
        self._busy[item.nodeid] = reason
        report.outcome = "skipped"
        path, line, _ = item.location
        report.longrepr = (path, line or 0, f"the machine was too busy to tell: {reason}")

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        if report.when == "call" and report.nodeid in self._busy:
            return _TOO_BUSY, "B", "TOO BUSY"
        return None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._busy and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = EXIT_TOO_BUSY

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not (self._passed or self._short or self._busy):
            return
        terminalreporter.section("judged by time")
        terminalreporter.line(f"passed: {len(self._passed)}")
        terminalreporter.line(f"fell short: {len(self._short)}")
        for name in self._short:
            terminalreporter.line(f"    {name}")
        terminalreporter.line(f"machine too busy to tell: {len(self._busy)}")
        for name, reason in self._busy.items():
            terminalreporter.line(f"    {name}: {reason}")


_LOOKS: pytest.StashKey[list[CpuTimes]] = pytest.StashKey()


def _judges_by_time(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(each) is not None for each in ("timed", "bench"))
