# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that run in the test kernel: on the host they are collected, in the guest they run.

The host boots the kernel once, for all tests of ``tests/vm/guest`` that were selected, and gives
every one of them the reports that the guest wrote. What the guest did not report has failed.
"""

from collections import defaultdict
import json
import os
from pathlib import Path
import shlex
import subprocess
import sys
import tempfile
from typing import Any

import pytest

IN_GUEST = "SWEETPOINT_VM_REPORTS"
TREE = Path(__file__).parents[2]
# A tenth of the host's speed; a guest that hangs must not hold up the run for longer.
TIMEOUT_S = 900.0
REPORTS = "reports.jsonl"

_Reports = dict[str, list[dict[str, Any]]]
_booted = pytest.StashKey[tuple[_Reports, str]]()


def in_guest() -> bool:
    return IN_GUEST in os.environ


def pytest_configure(config: pytest.Config) -> None:
    if in_guest():
        config.pluginmanager.register(_Reporter(config, Path(os.environ[IN_GUEST])))
        _prepare_guest()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    if in_guest() or item.get_closest_marker("vm") is None or _is_skipped(item):
        return None
    reports, console = _boot_once(item)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports_of(item, reports.get(item.nodeid, []), console):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _is_skipped(item: pytest.Item) -> bool:
    # The root conftest's switch and reason decide in the usual protocol, which fails or skips.
    from tests.conftest import vm_tests_reason

    switch = os.environ.get("SWEETPOINT_VM_TESTS", "")
    return switch not in ("", "1") or vm_tests_reason() is not None


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


def _boot_once(item: pytest.Item) -> tuple[_Reports, str]:
    if _booted not in item.session.stash:
        chosen = [each.nodeid for each in item.session.items if each.get_closest_marker("vm")]
        item.session.stash[_booted] = _boot(chosen)
    return item.session.stash[_booted]


def _boot(chosen: list[str]) -> tuple[_Reports, str]:
    with tempfile.TemporaryDirectory(prefix="sweetpoint-vm-") as name:
        directory = Path(name)
        (directory / "ids").write_text("\n".join(chosen))
        command = f"{IN_GUEST}={name} SWEETPOINT_VM_TESTS=1 SWEETPOINT_KERNEL_TESTS=1"
        command += f" PYTHONDONTWRITEBYTECODE=1 {shlex.quote(sys.executable)}"
        command += (
            f" -m pytest -m vm -p no:cacheprovider -o tmp_path_retention_policy=none @{name}/ids"
        )
        console = _run([str(TREE / "tools" / "test-kernel"), "run", command], directory)
        reports: _Reports = defaultdict(list)
        if (directory / REPORTS).exists():
            for line in (directory / REPORTS).read_text().splitlines():
                report = json.loads(line)
                reports[report["nodeid"]].append(report)
        return reports, console


def _run(command: list[str], directory: Path) -> str:
    # Its own session, so that the whole of QEMU and its wrapper can be ended.
    environment = {**os.environ, "SWEETPOINT_VM_SHARE": str(directory)}
    with (directory / "console").open("wb") as console:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            process.wait(TIMEOUT_S)
            ended = f"ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"was stopped after {TIMEOUT_S:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()
    words = (directory / "console").read_text(errors="replace").splitlines()
    return "\n".join([*words[-40:], f"(the guest {ended})"])


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
