# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that run in the test kernel: on the host they are collected, in the guest they run.

The host boots the kernel once, for all tests of ``tests/vm/guest`` that were selected, and gives
every one of them the reports that the guest wrote. What the guest did not report has failed.

The emulator keeps one CPU busy for minutes. So tests that measure this machine run before it boots,
and those to whom its load makes no difference while it runs.
"""

from collections import defaultdict
import json
import os
from pathlib import Path
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import pytest

IN_GUEST = "SWEETPOINT_VM_REPORTS"
TREE = Path(__file__).parents[2]
# A tenth of the host's speed; a guest that hangs must not hold up the run for longer.
TIMEOUT_S = 900.0
REPORTS = "reports.jsonl"

_Reports = dict[str, list[dict[str, Any]]]
# Of tests that need a machine which does nothing else.
_QUIET = ("kernel", "kube")


def in_guest() -> bool:
    return IN_GUEST in os.environ


def pytest_configure(config: pytest.Config) -> None:
    if in_guest():
        config.pluginmanager.register(_Reporter(config, Path(os.environ[IN_GUEST])))
        _prepare_guest()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not in_guest():
        items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    """When *item* runs: what needs quiet, what needs nothing, what asks the guest."""
    if item.get_closest_marker("vm") is not None:
        return 2
    return 0 if any(map(item.get_closest_marker, _QUIET)) else 1


def pytest_collection_finish(session: pytest.Session) -> None:
    chosen = [each for each in session.items if each.get_closest_marker("vm")]
    if chosen and not in_guest() and not _is_skipped():
        host = _Host([each.nodeid for each in chosen])
        session.config.pluginmanager.register(host)
        session.config.add_cleanup(host.end)


def _is_skipped() -> bool:
    # The root conftest's switch and reason decide in the usual protocol, which fails or skips.
    from tests.conftest import vm_tests_reason

    switch = os.environ.get("SWEETPOINT_VM_TESTS", "")
    return switch not in ("", "1") or vm_tests_reason() is not None


class _Host:
    """Boots the guest for the tests *chosen*, and gives each of them its reports."""

    def __init__(self, chosen: list[str]) -> None:
        self._chosen = chosen
        self._guest: _Guest | None = None
        self._told: tuple[_Reports, str] | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        turn = _turn(item)
        if turn > 0 and self._guest is None:
            self._guest = _Guest(self._chosen)
        if turn < 2:
            return None
        assert self._guest is not None
        if self._told is None:
            self._told = self._guest.wait()
        reports, console = self._told
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in _reports_of(item, reports.get(item.nodeid, []), console):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def end(self) -> None:
        """Stop the guest if it still runs; nothing of it stays."""
        if self._guest is not None:
            self._guest.end()


def _reports_of(
    item: pytest.Item, found: list[dict[str, Any]], console: str
) -> list[pytest.TestReport]:
    reports = [
        item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
        for data in found
    ]
    if not any(report.when == "teardown" for report in reports):
        text = f"the guest ended without finishing this test; its last words:\n{console}"
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


class _Guest:
    """The test kernel under QEMU, with the tests *chosen*."""

    def __init__(self, chosen: list[str]) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="sweetpoint-vm-")
        name = self._scratch.name
        self._directory = Path(name)
        (self._directory / "ids").write_text("\n".join(chosen))
        command = f"{IN_GUEST}={name} SWEETPOINT_VM_TESTS=1 SWEETPOINT_KERNEL_TESTS=1"
        command += f" PYTHONDONTWRITEBYTECODE=1 {shlex.quote(sys.executable)}"
        command += (
            f" -m pytest -m vm -p no:cacheprovider -o tmp_path_retention_policy=none @{name}/ids"
        )
        self._stop_at = time.monotonic() + TIMEOUT_S
        with (self._directory / "console").open("wb") as console:
            # Its own session, so that the whole of QEMU and its wrapper can be ended.
            self._process = subprocess.Popen(
                [str(TREE / "tools" / "test-kernel"), "run", command],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                env={**os.environ, "SWEETPOINT_VM_SHARE": name},
                start_new_session=True,
            )

    def wait(self) -> tuple[_Reports, str]:
        """Return every test's reports, and the last words on the console."""
        try:
            self._process.wait(max(0.0, self._stop_at - time.monotonic()))
            ended = f"ended with {self._process.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"was stopped after {TIMEOUT_S:.0f} s"
            self._kill()
        words = (self._directory / "console").read_text(errors="replace").splitlines()
        reports: _Reports = defaultdict(list)
        if (self._directory / REPORTS).exists():
            for line in (self._directory / REPORTS).read_text().splitlines():
                report = json.loads(line)
                reports[report["nodeid"]].append(report)
        return reports, "\n".join([*words[-40:], f"(the guest {ended})"])

    def end(self) -> None:
        """Stop it if it still runs, and remove its files."""
        self._kill()
        self._scratch.cleanup()

    def _kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class _Reporter:
    """In the guest: writes every report down as soon as it is there."""

    def __init__(self, config: pytest.Config, directory: Path) -> None:
        self._config = config
        self._file = (directory / REPORTS).open("a", encoding="utf-8")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._file.write(json.dumps(data) + "\n")
        self._file.flush()


def _prepare_guest() -> None:
    # What the init of a distribution would have done.
    Path("/run/sweetpoint").mkdir(exist_ok=True)
    for kind, point in (
        ("debugfs", "/sys/kernel/debug"),
        ("tracefs", "/sys/kernel/tracing"),
        ("bpf", "/sys/fs/bpf"),
    ):
        if not os.path.ismount(point):
            subprocess.run(["mount", "-t", kind, kind, point], check=True)
    # Processes in the root are allowed; controllers for everybody else.
    control = Path("/sys/fs/cgroup/cgroup.subtree_control")
    control.write_text("+cpu +cpuset +memory +io +pids")
