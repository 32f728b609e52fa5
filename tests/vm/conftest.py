# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Runner of the tests in the test kernel: the host collects them, the guest executes them.

The host boots the kernel once for all selected tests of ``tests/vm/guest``, and reports for each
test what the guest reported. A test without a report of the guest has failed.

The emulator keeps one CPU busy for minutes. It begins before the first test, and the tests of the
host run beside it; those of the guest are reported last.
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

from actuators.core_scheduling import cookie
from controller.probes.bpf import compiler
from controller.probes.bpf.loader import use_cache
from tests.support.waiting import DEADLINE_S

IN_GUEST = "SWEETPOINT_VM_REPORTS"
TREE = Path(__file__).parents[2]
# Only a guest that hangs reaches them, also on a busy machine.
TIMEOUT_S = 5400.0
SOAK_TIMEOUT_S = 14400.0
REPORTS = "reports.jsonl"

_Reports = dict[str, list[dict[str, Any]]]


def in_guest() -> bool:
    return IN_GUEST in os.environ


def pytest_configure(config: pytest.Config) -> None:
    if in_guest():
        config.pluginmanager.register(_Reporter(config, Path(os.environ[IN_GUEST])))
        _prepare_guest()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the tests of `make test` run first, and report those of the guest last."""
    if not in_guest():
        items.sort(key=lambda item: (_is_of_guest(item), _is_thorough(item)))


def _is_thorough(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) is not None for name in ("thorough", "kube"))


def _is_of_guest(item: pytest.Item) -> bool:
    return item.get_closest_marker("vm") is not None


def pytest_collection_finish(session: pytest.Session) -> None:
    chosen = [*filter(_is_of_guest, session.items)]
    if chosen and not in_guest() and not _is_skipped():
        soak = any(each.get_closest_marker("soak") for each in chosen)
        limit_s = SOAK_TIMEOUT_S if soak else TIMEOUT_S
        host = _Host([each.nodeid for each in chosen], limit_s)
        session.config.pluginmanager.register(host)
        session.config.add_cleanup(host.end)


def _is_skipped() -> bool:
    # In this case the root conftest fails or skips the tests in the usual protocol.
    from tests.conftest import vm_tests_reason

    switch = os.environ.get("SWEETPOINT_VM_TESTS", "")
    return switch not in ("", "1") or vm_tests_reason() is not None


class _Host:
    """Boots the guest for the tests *chosen*, and reports for each of them what it reported."""

    def __init__(self, chosen: list[str], limit_s: float) -> None:
        self._chosen, self._limit_s = chosen, limit_s
        self._guest: _Guest | None = None
        self._result: tuple[_Reports, str] | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if self._guest is None:  # not earlier, because tests may only be collected
            self._guest = _Guest(self._chosen, self._limit_s)
        if not _is_of_guest(item):
            return None
        if self._result is None:
            self._result = self._guest.wait()
        reports, console = self._result
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in _reports_of(item, reports.get(item.nodeid, []), console):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def end(self) -> None:
        """Stop the guest if it is running, and remove its files."""
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
        text = f"the guest ended without a result of this test; end of its console:\n{console}"
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
    """The test kernel under QEMU, with the tests *chosen*, for at most *limit_s*."""

    def __init__(self, chosen: list[str], limit_s: float) -> None:
        self._limit_s = limit_s
        self._scratch = tempfile.TemporaryDirectory(prefix="sweetpoint-vm-")
        name = self._scratch.name
        self._directory = Path(name)
        (self._directory / "ids").write_text("\n".join(chosen))
        command = f"{IN_GUEST}={name} SWEETPOINT_VM_TESTS=1 SWEETPOINT_KERNEL_TESTS=1"
        command += f" SWEETPOINT_KUBE_TESTS={os.environ.get('SWEETPOINT_KUBE_TESTS', '')}"
        command += f" PYTHONDONTWRITEBYTECODE=1 {shlex.quote(sys.executable)}"
        command += (
            f" -m pytest -m vm -p no:cacheprovider -o tmp_path_retention_policy=none @{name}/ids"
        )
        self._stop_at = time.monotonic() + limit_s
        with (self._directory / "console").open("wb") as console:
            # A session of its own, so that QEMU and its wrapper can be killed together.
            self._process = subprocess.Popen(
                [str(TREE / "tools" / "test-kernel"), "run", command],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                env={**os.environ, "SWEETPOINT_VM_SHARE": name},
                start_new_session=True,
            )

    def wait(self) -> tuple[_Reports, str]:
        """Return the reports by test, and the end of the console."""
        try:
            self._process.wait(max(0.0, self._stop_at - time.monotonic()))
            ended = f"ended with {self._process.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"was stopped after {self._limit_s:.0f} s"
            self._kill()
        words = (self._directory / "console").read_text(errors="replace").splitlines()
        reports: _Reports = defaultdict(list)
        if (self._directory / REPORTS).exists():
            for line in (self._directory / REPORTS).read_text().splitlines():
                report = json.loads(line)
                reports[report["nodeid"]].append(report)
        return reports, "\n".join([*words[-40:], f"(the guest {ended})"])

    def end(self) -> None:
        """Stop the guest if it is running, and remove its files."""
        self._kill()
        self._scratch.cleanup()

    def _kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class _Reporter:
    """In the guest: writes each report to a file immediately."""

    def __init__(self, config: pytest.Config, directory: Path) -> None:
        self._config = config
        self._file = (directory / REPORTS).open("a", encoding="utf-8")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._file.write(json.dumps(data) + "\n")
        self._file.flush()


def _prepare_guest() -> None:
    # Set-up that the init of a distribution does otherwise.
    Path("/run/sweetpoint").mkdir(exist_ok=True)
    for kind, point in (
        ("debugfs", "/sys/kernel/debug"),
        ("tracefs", "/sys/kernel/tracing"),
        ("bpf", "/sys/fs/bpf"),
    ):
        if not os.path.ismount(point):
            subprocess.run(["mount", "-t", kind, kind, point], check=True)
    # One compilation of a program for all tests.
    use_cache(Path("/run/sweetpoint/programs"))
    # The limits of children are for machines that are ten times faster.
    compiler._TIMEOUT_S = cookie._CLEAR_S = DEADLINE_S
    # The root cgroup may have processes and still enable controllers for its children.
    control = Path("/sys/fs/cgroup/cgroup.subtree_control")
    control.write_text("+cpu +cpuset +memory +io +pids")
