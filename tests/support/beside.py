# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that run in a pytest of their own, beside the others, and are reported last.

The child writes each report to a file. The parent begins the child before its own first test, and
repeats the child's reports as if the tests had run here. A test without a report has failed.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

import pytest

__all__ = ("IN_CHILD", "Beside", "Child", "Reporter", "run_in_child")

# In the environment of a child of ``run_in_child``: where its reporter writes.
IN_CHILD = "SWEETPOINT_BESIDE_REPORTS"
# Nothing runs beside tests with one of these markers.
_MEASURED = ("bench", "soak", "timed")
# Only tests that hang reach it, also on a busy machine.
_LIMIT_S = 5400.0

_REPORTS = "reports.jsonl"
# A child that was asked to end cleans up, which takes a node half a minute on a busy machine.
_END_S = 120.0

_Reports = dict[str, list[dict[str, Any]]]


class Child(NamedTuple):
    """A pytest of its own: *name* for messages, and what to start for a directory.

    In this directory ``ids`` has the tests, and the child's :class:`Reporter` writes there.
    *limit_s*: only a child that hangs reaches it. *cleans_up*: it is asked to end, not killed.
    """

    name: str
    command: Callable[[Path], Sequence[str]]
    environ: Callable[[Path], Mapping[str, str]]
    limit_s: float
    cleans_up: bool


class Reporter:
    """In the child: writes each report to a file in *directory* immediately."""

    def __init__(self, config: pytest.Config, directory: Path) -> None:
        self._config = config
        self._file = (directory / _REPORTS).open("a", encoding="utf-8")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._file.write(json.dumps(data) + "\n")
        self._file.flush()


class Beside:
    """Runs *chosen*, ids of tests, in *child*, and reports for each what the child reported."""

    def __init__(self, child: Child, chosen: Sequence[str]) -> None:
        self._child, self._chosen = child, frozenset(chosen)
        self._ids = "\n".join(chosen)
        self._run: _Run | None = None
        self._result: tuple[_Reports, str] | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if self._run is None:  # not earlier, because tests may only be collected
            self._run = _Run(self._child, self._ids)
        if item.nodeid not in self._chosen:
            return None
        if self._result is None:
            self._result = self._run.wait()
        reports, output = self._result
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in _reports_of(item, reports.get(item.nodeid, []), self._child.name, output):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def end(self) -> None:
        """Stop the child if it is running, and remove its files."""
        if self._run is not None:
            self._run.end()


def run_in_child(session: pytest.Session, name: str, chosen: Sequence[pytest.Item]) -> None:
    """Run *chosen* tests of *session* in another pytest on this host, *name* for messages.

    Without effect in such a child, and where a test is to be measured.
    """
    marked = any(each.get_closest_marker(mark) for each in session.items for mark in _MEASURED)
    if marked or not chosen or IN_CHILD in os.environ:
        return
    pytest_of = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
    child = Child(
        name,
        lambda directory: [*pytest_of, f"@{directory}/ids"],
        lambda directory: {IN_CHILD: str(directory)},
        _LIMIT_S,
        cleans_up=True,
    )
    beside = Beside(child, [each.nodeid for each in chosen])
    session.config.pluginmanager.register(beside)
    session.config.add_cleanup(beside.end)


def _reports_of(
    item: pytest.Item, found: list[dict[str, Any]], name: str, output: str
) -> list[pytest.TestReport]:
    reports = [
        item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
        for data in found
    ]
    if not any(report.when == "teardown" for report in reports):
        text = f"the {name} ended without a result of this test; end of its output:\n{output}"
        reports.append(
            pytest.TestReport(
                nodeid=item.nodeid,
                location=item.location,
                keywords={},
                outcome="failed",
                longrepr=text,
                when="call",
            )
        )
    return reports


class _Run:
    """The running *child* with the tests *ids*, one a line."""

    def __init__(self, child: Child, ids: str) -> None:
        self._child = child
        self._scratch = tempfile.TemporaryDirectory(prefix="sweetpoint-beside-")
        self._directory = Path(self._scratch.name)
        (self._directory / "ids").write_text(ids)
        self._stop_at = time.monotonic() + child.limit_s
        with (self._directory / "output").open("wb") as output:
            # A session of its own: one Ctrl-C must not reach it twice, and it can be killed whole.
            self._process = subprocess.Popen(
                child.command(self._directory),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **child.environ(self._directory)},
                start_new_session=True,
            )

    def wait(self) -> tuple[_Reports, str]:
        """Return the reports by test, and the end of the child's output."""
        try:
            self._process.wait(max(0.0, self._stop_at - time.monotonic()))
            ended = f"ended with {self._process.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"was stopped after {self._child.limit_s:.0f} s"
            self._stop()
        lines = (self._directory / "output").read_text(errors="replace").splitlines()
        reports: _Reports = defaultdict(list)
        if (self._directory / _REPORTS).exists():
            for line in (self._directory / _REPORTS).read_text().splitlines():
                report = json.loads(line)
                reports[report["nodeid"]].append(report)
        return reports, "\n".join([*lines[-40:], f"(the {self._child.name} {ended})"])

    def end(self) -> None:
        """Stop the child if it is running, and remove its files."""
        self._stop()
        self._scratch.cleanup()

    def _stop(self) -> None:
        if self._process.poll() is not None:
            return
        try:
            if self._child.cleans_up:
                self._process.send_signal(signal.SIGINT)
                self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            pass
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
