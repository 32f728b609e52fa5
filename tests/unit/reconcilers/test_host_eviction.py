# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Thawing of workloads that were frozen on this host, where the kernel refuses it at first."""

import errno
import logging
from pathlib import Path

import pytest

from actuators.base import RefusedError
from actuators.executor import Executor
from actuators.file_knob import Step
from actuators.freezer import FREEZER, CgroupFreeze
from actuators.journal import Journal, Record
from actuators.kernfs import Cgroup
from controller.config.sections.eviction import EvictionConfig, StandaloneAction
from controller.core.decision import Eviction
from controller.core.model import (
    CgroupId,
    Channel,
    EvictionResult,
    Knob,
    KnobValue,
    Target,
    TargetKind,
)
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout
from controller.reconcilers.host_eviction import HostEvictions

FROZEN_NS = 10 * NS_PER_SEC


class Freezer(CgroupFreeze):
    """cgroup.freeze in a directory.

    ``stuck``: nothing can be thawed. ``overtaken``: another program freezes before this one does.
    """

    def __init__(self, mount: Path) -> None:
        super().__init__(mount, FREEZER, "v2")
        self.stuck = self.overtaken = False

    def read_from(self, cgroup: Cgroup) -> KnobValue:
        return KnobValue("1") if self.overtaken else super().read_from(cgroup)

    def write_step(self, directory: Cgroup, step: Step) -> None:
        if self.stuck and step.state == "0":
            raise RefusedError(errno.EBUSY, "cannot thaw")
        super().write_step(directory, step)


class Host:
    """A host with one workload, without a kernel."""

    def __init__(self, home: Path) -> None:
        self.file = home / "batch/cgroup.freeze"
        self.file.parent.mkdir()
        self.file.write_text("0\n")
        self.freezer = Freezer(home)
        self.executor = Executor(Journal(home / "journal"), [self.freezer])
        self._config = EvictionConfig(StandaloneAction.FREEZE, FROZEN_NS)
        self._layout = CgroupLayout(hierarchy="v2", mount=home, version="v2", unified=home)
        self.evictions = self.start()

    def evict(self) -> EvictionResult:
        """Freeze the workload at time 0 and return the answer."""
        cgroup = CgroupId("v2", self.file.parent.stat().st_ino)
        eviction = Eviction(
            cgroup=cgroup,
            name="batch",
            channel=Channel.CPU,
            service="web",
            blame=1.0,
            reason="test",
        )
        self.evictions.request(eviction, "/batch", enforcing=True, now_ns=0)
        (answer,) = self.evictions.answers()
        return answer.result

    def start(self) -> HostEvictions:
        """Make the evictions of an agent, again."""
        self.evictions = HostEvictions(self._config, self._layout, self.executor)
        return self.evictions

    @property
    def frozen(self) -> bool:
        return self.file.read_text().strip() == "1"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    assert host.evict() is EvictionResult.FROZEN
    assert host.frozen
    return host


def test_a_thaw_that_the_kernel_refuses_is_told_and_tried_again(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    host.freezer.stuck = True
    for second in range(10, 15):
        host.evictions.reconcile(second * NS_PER_SEC)
        assert host.frozen
    told = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert [each.getMessage() for each in told] == ["cannot thaw"]
    host.freezer.stuck = False
    host.evictions.reconcile(80 * NS_PER_SEC)
    assert not host.frozen
    assert not host.executor.held()


def test_a_workload_that_a_restore_could_not_thaw_is_thawed_later(host: Host) -> None:
    host.evictions.reset()
    host.evictions.reconcile(NS_PER_SEC)
    assert not host.frozen


def test_a_workload_that_an_earlier_agent_froze_is_thawed(host: Host) -> None:
    host.start().reconcile(NS_PER_SEC)
    assert not host.frozen


def test_what_another_program_froze_meanwhile_is_not_thawed(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.freezer.overtaken = True
    assert host.evict() is EvictionResult.REFUSED
    host.freezer.overtaken = False
    host.file.write_text("1\n")
    host.evictions.reconcile(FROZEN_NS)
    assert host.frozen


def test_what_an_earlier_agent_froze_is_left_where_the_freezer_was_unmounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mountinfo").write_text("")
    monkeypatch.setattr("controller.host.facts._MOUNTINFO", tmp_path / "mountinfo")
    journal = Journal(tmp_path / "journal")
    target = Target(TargetKind.CGROUP, FREEZER, 5, "/batch")
    thawed, frozen = KnobValue("0"), KnobValue("1")
    journal.put(Record(target, Knob.FREEZE, thawed, thawed, frozen))
    layout = CgroupLayout(hierarchy="cpu", mount=tmp_path, version="v1", unified=None)
    evictions = HostEvictions(EvictionConfig(), layout, Executor(journal, ()))
    evictions.reconcile(0)
    assert journal.get(target, Knob.FREEZE) is not None
