# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""On which disks iocost is enabled, for how long, and which ones are left alone."""

from dataclasses import replace
import errno
import logging
from pathlib import Path

import pytest

from actuators.base import RefusedError
from actuators.executor import Executor, restore_leftovers
from actuators.io_cost import IoCost
from actuators.journal import Journal
from controller.core.model import CgroupId, QosClass, Workload
from controller.core.settings import DiskFacts, IoClass, Settings
from controller.host.facts import CgroupLayout
from controller.reconcilers import io_cost
from controller.reconcilers.io_cost import IoCostReconciler
from tests.support.loops.closed_loop import make_settings

SECOND = 1_000_000_000
ON, OFF = "8:16 enable=1 ctrl=auto", "8:16 enable=0 ctrl=auto"
WEB, JOB = (
    Workload(name, CgroupId("v2", number), f"/{name}", qos, name, "default", io_class=given)
    for number, (name, qos, given) in enumerate(
        (("web", QosClass.LS, "gold"), ("job", QosClass.BE, "")), 1
    )
)


class Host:
    """A host with the disk 8:16, and an agent."""

    def __init__(self, home: Path, weight: int | None = 800) -> None:
        self.home, self.mount = home, home / "mount"
        (home / "devices/8:16").mkdir(parents=True)
        self.file = self.mount / "io.cost.qos"
        for each in (WEB, JOB):
            (self.mount / each.name).mkdir(parents=True)
        self.file.touch()
        self.layout = CgroupLayout(
            hierarchy="v2", mount=self.mount, version="v2", unified=self.mount
        )
        settings = make_settings()
        host = replace(settings.host, disks=(DiskFacts("8:16"),))
        self.settings: Settings = replace(settings, host=host, io_classes={"gold": IoClass(weight)})
        self.executor = Executor(Journal(home / "state/journal"), [IoCost(self.layout)])
        self.reconciler = IoCostReconciler(self.executor, self.layout)
        self.reconciler.reconfigure(self.settings)
        self.reconciler.set_workloads([WEB, JOB])
        self.now_ns = 0

    def use(self, *workloads: Workload) -> None:
        """Let *workloads* send requests to the disk."""
        for each in workloads:
            (self.mount / each.name / "io.stat").write_text("8:16 rbytes=1 rios=1 wios=0\n")

    def run(self) -> str:
        """Tick for two rounds, and return the file."""
        for _ in range(12):
            self.now_ns += SECOND
            self.reconciler.reconcile(self.now_ns)
        return self.file.read_text()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    (tmp_path / "state").mkdir()
    monkeypatch.setattr(IoCost, "devices", tmp_path / "devices")
    return Host(tmp_path)


def test_a_shared_disk_is_enabled_and_given_back_by_a_process_that_has_only_the_journal(
    host: Host,
) -> None:
    assert host.run() == ""
    host.use(WEB)
    assert host.run() == ""
    host.use(JOB)
    assert host.run() == ON
    assert restore_leftovers(host.home / "state", [IoCost(host.layout)]).clean
    assert host.file.read_text() == OFF


@pytest.mark.parametrize("end", ["no service", "paused", "switched off"])
def test_it_is_given_back_when_no_service_needs_it(host: Host, end: str) -> None:
    host.use(WEB, JOB)
    assert host.run() == ON
    host.reconciler.set_workloads([WEB])
    assert host.run() == ON
    if end == "switched off":
        host.reconciler.reconfigure(None)
    else:
        left = [WEB._replace(qos=QosClass.SYSTEM, io_class="")] if end == "paused" else []
        host.reconciler.set_workloads([*left, JOB])
    assert host.run() == OFF
    assert not host.executor.held()
    host.reconciler.reconfigure(host.settings)
    host.reconciler.set_workloads([WEB, JOB])
    assert host.run() == ON


def test_a_disk_that_the_configuration_no_longer_has_is_given_back(host: Host) -> None:
    host.use(WEB, JOB)
    assert host.run() == ON
    without = replace(host.settings, host=replace(host.settings.host, disks=()))
    host.reconciler.reconfigure(without)
    assert host.run() == OFF
    host.reconciler.reconfigure(host.settings)
    assert host.run() == ON


def test_without_a_use_for_weights_nothing_is_enabled(host: Host) -> None:
    host.reconciler.reconfigure(replace(host.settings, io_classes={"gold": IoClass()}))
    host.use(WEB, JOB)
    assert host.run() == ""


def test_a_disk_of_another_program_is_left_alone_and_told_once(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    host.file.write_text("8:16 enable=1 ctrl=user rpct=95.00\n")
    host.use(WEB, JOB)
    assert host.run() == host.run() == "8:16 enable=1 ctrl=user rpct=95.00\n"
    assert caplog.messages == ["io.cost.qos: disk 8:16 is left alone: another program enabled it"]


def test_a_disk_of_bfq_is_left_alone(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_cost, "has_bfq", lambda disk: disk == "8:16")
    host.use(WEB, JOB)
    assert host.run() == ""
    assert "BFQ" in host.reconciler.left["8:16"]


def test_what_another_program_changes_later_is_its_own(host: Host) -> None:
    host.use(WEB, JOB)
    assert host.run() == ON
    host.file.write_text(OFF)
    host.executor.read(host.executor.held())
    assert host.run() == OFF
    assert not host.executor.held()
    assert "another program" in host.reconciler.left["8:16"]


def test_after_a_restore_it_starts_over(host: Host) -> None:
    host.use(WEB, JOB)
    assert host.run() == ON
    host.executor.restore_all()
    host.reconciler.reset()
    assert host.file.read_text() == OFF
    assert host.run() == ON


def test_a_refusal_is_told_once(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    def refuse(*_: object) -> None:
        raise RefusedError(errno.EOPNOTSUPP, "8:16: no")

    monkeypatch.setattr(IoCost, "write_step", refuse)
    host.use(WEB, JOB)
    assert host.run() == host.run() == ""
    told = "io.cost.qos: disk 8:16 is left alone: 8:16: no"
    assert [each for each in caplog.messages if each == told] == [told]
    assert not host.executor.held()
