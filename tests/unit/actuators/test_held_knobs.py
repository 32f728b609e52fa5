# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Whose value a knob has: ours, that of a routine of kubelet or systemd, or of another program."""

import logging
from pathlib import Path

import pytest

from actuators.cpu import CpuIdle
from actuators.held_knobs import HeldKnobs
from actuators.journal import Journal, Record
from controller.core.model import Knob, KnobValue, Target, TargetKind

IDLE, NORMAL = KnobValue("1"), KnobValue("0 2")
POD = "/kubepods/besteffort/pod1"
SLICE = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice"


class Knobs:
    """cpu.idle of one cgroup, without a kernel."""

    def __init__(self, home: Path, path: str) -> None:
        knob = CpuIdle(Path("/nowhere"), "x", "v1")
        self.held = HeldKnobs(Journal(home), {Knob.SCHED_IDLE: knob})
        self.target = Target(TargetKind.CGROUP, "x", 1, path)

    def write(self, original: KnobValue) -> None:
        record = Record(self.target, Knob.SCHED_IDLE, original, original, IDLE)
        self.held.begin(record)
        self.held.finish(record, IDLE, refused=False)

    def read(self, value: str) -> None:
        """Find *value* in the place of the one that was written."""
        assert self.held.disown_foreign(self.target, Knob.SCHED_IDLE, KnobValue(value))
        assert self.held.get(self.target, Knob.SCHED_IDLE) is None

    def counts(self) -> tuple[int, int]:
        held = self.held
        return held.routine[Knob.SCHED_IDLE], held.overwritten[Knob.SCHED_IDLE]


@pytest.mark.parametrize("path", [POD, SLICE])
def test_a_routine_is_counted_apart_and_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    knobs = Knobs(tmp_path, path)
    for _ in range(3):
        knobs.write(NORMAL)
        knobs.read(NORMAL)
    assert knobs.counts() == (3, 0)
    assert not [each for each in caplog.records if each.levelno >= logging.INFO]


def test_the_same_value_elsewhere_is_foreign(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    knobs = Knobs(tmp_path, "/batch/job")
    knobs.write(NORMAL)
    knobs.read(NORMAL)
    assert knobs.counts() == (0, 1)
    assert [each.levelno for each in caplog.records] == [logging.WARNING]


def test_another_value_is_foreign_from_the_second_time_on(tmp_path: Path) -> None:
    knobs = Knobs(tmp_path, POD)
    knobs.write(NORMAL)
    knobs.read("0 512")
    # That value is the original from now on, but not what kubelet writes.
    knobs.write(KnobValue("0 512"))
    knobs.read("0 512")
    assert knobs.counts() == (1, 1)
    knobs.write(KnobValue("0 512"))
    knobs.read(NORMAL)
    assert knobs.counts() == (2, 1)


def test_what_is_restored_begins_anew(tmp_path: Path) -> None:
    knobs = Knobs(tmp_path, POD)
    knobs.write(NORMAL)
    knobs.read("0 512")
    knobs.held.release(knobs.target, Knob.SCHED_IDLE)
    knobs.write(KnobValue("0 512"))
    knobs.read("0 512")
    assert knobs.counts() == (2, 0)
