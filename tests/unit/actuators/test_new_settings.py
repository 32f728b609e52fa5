# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Values that the manager of a cgroup changes while the agent holds its knobs."""

import logging
from pathlib import Path

import pytest

from actuators.cpu import CpuIdle, CpuQuota
from actuators.held_knobs import HeldKnobs
from actuators.journal import Journal
from actuators.record import Record
from controller.core.knob_values import write_text
from controller.core.model import Knob, KnobValue, Target, TargetKind

OURS = KnobValue("5000 100000 0")
POD = "/kubepods/burstable/pod1"


class Cgroup:
    """A cgroup whose quota the agent limits again after each change of another program."""

    def __init__(self, home: Path, path: str) -> None:
        self.now_s = 0.0
        mount = Path("/nowhere")
        actuators = {
            Knob.CPU_QUOTA: CpuQuota(mount, "x", "v2"),
            Knob.SCHED_IDLE: CpuIdle(mount, "x", "v2"),
        }
        self.held = HeldKnobs(Journal(home), actuators, lambda: self.now_s)
        self.target = Target(TargetKind.CGROUP, "x", 1, path)
        self.original = KnobValue("max 100000 0")

    def limit(self) -> None:
        record = Record(self.target, Knob.CPU_QUOTA, self.original, self.original, OURS)
        self.held.begin(record)
        self.held.finish(record, OURS, refused=False)

    def resize(self, cpus: int) -> None:
        self.limit()
        self.original = KnobValue(f"{cpus}00000 100000 0")
        assert self.held.disown_foreign(self.target, Knob.CPU_QUOTA, self.original)

    def counts(self) -> tuple[int, int]:
        return self.held.routine[Knob.CPU_QUOTA], self.held.overwritten[Knob.CPU_QUOTA]


@pytest.mark.parametrize("path", [POD, "/system.slice/encode.service"])
def test_a_resize_is_information(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    cgroup = Cgroup(tmp_path, path)
    with caplog.at_level(logging.INFO):
        for cpus in (2, 3, 4):
            cgroup.resize(cpus)
    assert cgroup.counts() == (3, 0)
    assert {each.levelno for each in caplog.records} == {logging.INFO}
    first = caplog.records[0].getMessage()
    assert first == (
        f"kubelet or systemd set cpu.quota of {path} to '200000 100000 0', in place of "
        "'5000 100000 0' by this agent: it is the original from now on"
    )


def test_a_fourth_within_ten_minutes_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cgroup = Cgroup(tmp_path, POD)
    for number in range(1, 9):
        cgroup.resize(number)
        cgroup.now_s += 200
    assert cgroup.counts() == (8, 0), "one in 200 s are three in ten minutes"
    cgroup.now_s -= 100
    cgroup.resize(9)
    assert cgroup.counts() == (8, 1)
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert "another program set" in caplog.text
    cgroup.now_s += 600
    cgroup.resize(10)
    assert cgroup.counts() == (9, 1)


def test_a_program_that_keeps_to_one_value_is_a_warning(tmp_path: Path) -> None:
    cgroup = Cgroup(tmp_path, POD)
    for _ in range(3):
        cgroup.resize(2)
        cgroup.now_s += 3600
    assert cgroup.counts() == (1, 2)


def test_a_new_value_elsewhere_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cgroup = Cgroup(tmp_path, "/batch/job")
    cgroup.resize(2)
    assert cgroup.counts() == (0, 1)
    assert [each.levelname for each in caplog.records] == ["WARNING"]


def test_a_weight_is_not_reported_as_cpu_idle(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cgroup = Cgroup(tmp_path, POD)
    idle = Record(
        cgroup.target, Knob.SCHED_IDLE, KnobValue("0 2"), KnobValue("0 2"), KnobValue("1")
    )
    cgroup.held.begin(idle)
    cgroup.held.finish(idle, KnobValue("1"), refused=False)
    with caplog.at_level(logging.INFO):
        assert cgroup.held.disown_foreign(cgroup.target, Knob.SCHED_IDLE, KnobValue("0 256"))
    assert f"set the weight of {POD} to 256, in place of '1' by this agent" in caplog.text
    for value in ("1", "odd", "0 odd"):
        assert write_text(Knob.SCHED_IDLE, "/a", KnobValue(value)) == f"cpu.idle of /a to '{value}'"
