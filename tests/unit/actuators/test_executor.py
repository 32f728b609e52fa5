# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The executor on cgroups without a kernel: directories, whose knobs the test refuses or breaks."""

import errno
from pathlib import Path

import pytest

from actuators.base import RefusedError, Restored
from actuators.cpu import CpuQuota
from actuators.executor import Executor
from actuators.file_knob import Step
from actuators.freezer import FREEZER, CgroupFreeze
from actuators.journal import Journal, JournalError, Record
from actuators.kernfs import Cgroup
from actuators.memory_io import IoMax
from controller.core.decision import Action, Outcome
from controller.core.model import Knob, KnobReading, KnobValue, Target, TargetKind


class Quota(CpuQuota):
    """cpu.quota of one cgroup, kept here; ``broken_after`` writes the kernel fails."""

    def __init__(self, mount: Path) -> None:
        super().__init__(mount, "v2", "v2")
        self.value = KnobValue("max 100000 5000")
        self.broken_after: int | None = None

    def unsupported_reason(self) -> str | None:
        return None

    def read_from(self, cgroup: Cgroup) -> KnobValue:
        return self.value

    def write_step(self, directory: Cgroup, step: Step) -> None:
        if self.broken_after == 0:
            raise OSError(errno.EIO, "broken")
        if self.broken_after is not None:
            self.broken_after -= 1
        self.value = step.state


def cgroup(mount: Path, scope: str = "v2") -> Target:
    path = mount / "batch"
    path.mkdir(exist_ok=True)
    return Target(TargetKind.CGROUP, scope, path.stat().st_ino, "/batch")


def set_quota(target: Target, previous: KnobValue, value: str) -> Action:
    return Action(
        target=target,
        knob=Knob.CPU_QUOTA,
        previous=previous,
        value=KnobValue(value),
        reason="test",
    )


@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_write_that_was_broken_off_is_undone(tmp_path: Path, done: int) -> None:
    knob, target = Quota(tmp_path), cgroup(tmp_path)
    original = knob.value
    executor = Executor(Journal(tmp_path / "journal"), [knob])
    executor.execute([set_quota(target, original, "20000 100000 1000")], now_ns=0)
    assert knob.value == "20000 100000 1000"
    # The burst is set to 0, the quota is written, and the new burst.
    knob.broken_after = done
    with pytest.raises(OSError, match="broken"):
        executor.execute([set_quota(target, knob.value, "30000 100000 2000")], now_ns=0)
    assert (knob.value == "20000 100000 1000") is (done == 0)
    knob.broken_after = None
    (result,) = executor.restore_all().results
    assert (result.result, knob.value) == (Restored.RESTORED, original)


FOREIGN = KnobValue("300000 100000 1000")  # another quota, with our burst


@pytest.mark.parametrize("how", ["read before", "not read", "another process"])
def test_the_part_that_is_ours_is_restored_after_a_foreign_write_of_another(
    tmp_path: Path, how: str
) -> None:
    knob, target = Quota(tmp_path), cgroup(tmp_path)
    executor = Executor(Journal(tmp_path / "journal"), [knob])
    executor.execute([set_quota(target, knob.value, "max 100000 1000")], now_ns=0)
    knob.value = FOREIGN
    if how == "read before":
        (reading,) = executor.read([target])
        assert (reading.value, reading.original) == (FOREIGN, None), "the planner knows by that"
        (reading,) = executor.read([target])
        assert (reading.value, reading.original) == (FOREIGN, "300000 100000 5000")
        assert executor.overwritten == {Knob.CPU_QUOTA: 1}
    if how == "another process":
        executor = Executor(Journal(tmp_path / "journal"), [knob])
    (result,) = executor.restore_all().results
    assert (result.result, knob.value) == (Restored.RESTORED, "300000 100000 5000")
    assert executor.restore_all().results == ()


def test_a_part_of_ours_is_restored_without_a_journal_that_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    knob, target = Quota(tmp_path), cgroup(tmp_path)
    journal = Journal(tmp_path / "journal")
    executor = Executor(journal, [knob])
    executor.execute([set_quota(target, knob.value, "max 100000 1000")], now_ns=0)
    knob.value = FOREIGN

    def full(record: Record) -> None:
        raise JournalError(OSError(errno.ENOSPC, "no space"), "cannot write", "make room")

    monkeypatch.setattr(journal, "put", full)
    executor.read([target])
    (result,) = executor.restore_all().results
    assert (result.result, knob.value) == (Restored.RESTORED, "300000 100000 5000")


def test_a_foreign_write_during_the_restore_leaves_nothing_of_ours(tmp_path: Path) -> None:
    knob, target = Quota(tmp_path), cgroup(tmp_path)
    executor = Executor(Journal(tmp_path / "journal"), [knob])
    executor.execute([set_quota(target, knob.value, "max 100000 1000")], now_ns=0)
    reads = iter(["max 100000 1000", FOREIGN])

    class Racing(Quota):
        def read_from(self, cgroup: Cgroup) -> KnobValue:
            self.value = KnobValue(next(reads, self.value))
            return self.value

    racing = Racing(tmp_path)
    results = Executor(Journal(tmp_path / "journal"), [racing]).restore_all().results
    assert [each.result for each in results] == [Restored.RESTORED]
    assert racing.value == "300000 100000 5000"


def test_a_write_broken_off_and_a_foreign_write_of_another_part(tmp_path: Path) -> None:
    disks = Disks(tmp_path)
    disks.limit("8:0 rbps=100;8:16 rbps=100")
    held = disks.executor._held
    (record,) = held.records()
    held.begin(
        record._replace(previous=record.intended, intended=KnobValue("8:0 rbps=50;8:16 rbps=50"))
    )
    held.unsettle(record.target, record.knob)
    # 8:16 was not written any more, and another program wrote 8:0.
    (tmp_path / "batch/io.max").write_text("8:0 rbps=700\n8:16 rbps=100\n")
    assert disks.restore() == (Restored.RESTORED, "8:0 rbps=700")


def test_a_foreign_value_is_left_as_it_is(tmp_path: Path) -> None:
    knob, target = Quota(tmp_path), cgroup(tmp_path)
    executor = Executor(Journal(tmp_path / "journal"), [knob])
    executor.execute([set_quota(target, knob.value, "20000 100000 1000")], now_ns=0)
    knob.value = KnobValue("300000 100000 2000")
    (result,) = executor.restore_all().results
    assert (result.result, knob.value) == (Restored.FOREIGN, "300000 100000 2000")


def test_an_error_of_one_knob_prevents_no_restore_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(CgroupFreeze):
        """A knob whose library is missing since an upgrade."""

        knob = Knob.MEMORY_HIGH

        def read(self, target: Target) -> KnobValue:
            raise ModuleNotFoundError("No module named 'pyroute2'")

    monkeypatch.setattr("actuators.executor._RESTORE_RETRY_S", 0.0)
    knob, target = Quota(tmp_path), cgroup(tmp_path)
    original = knob.value
    journal = Journal(tmp_path / "journal")
    executor = Executor(journal, [knob])
    executor.execute([set_quota(target, original, "20000 100000 1000")], now_ns=0)
    (record,) = journal.records
    journal.put(record._replace(knob=Knob.MEMORY_HIGH))
    again = Executor(journal, [knob, Broken(tmp_path, "v2", "v2")])
    results = {each.result: each.message for each in again.restore_all().results}
    assert results.keys() == {Restored.RESTORED, Restored.FAILED}
    assert "ModuleNotFoundError" in results[Restored.FAILED]
    assert knob.value == original


def test_a_frozen_cgroup_has_no_knobs_of_other_hierarchies(tmp_path: Path) -> None:
    target = cgroup(tmp_path, FREEZER)
    (tmp_path / "batch/cgroup.freeze").write_text("1\n")
    knobs = [Quota(tmp_path), CgroupFreeze(tmp_path, FREEZER, "v2")]
    executor = Executor(Journal(tmp_path / "journal"), knobs)
    assert executor.read([target]) == (KnobReading(target, Knob.FREEZE, KnobValue("1"), None),)


class DiskFile(Cgroup):
    """io.max as the kernel has it: a disk that is not in *devices* has no row, and gets none."""

    def __init__(self, mount: Path, target: Target, devices: Path) -> None:
        super().__init__(mount, target)
        self._mount = mount
        self._devices = devices

    def read(self, name: str) -> str:
        rows = super().read(name).splitlines()
        return "\n".join(row for row in rows if (self._devices / row.split()[0]).exists())

    def write(self, name: str, text: str) -> None:
        disk, *limits = text.split()
        if not (self._devices / disk).exists():
            raise RefusedError(errno.ENODEV, f"{disk}: no such file or object")
        others = [row for row in super().read(name).splitlines() if row.split()[0] != disk]
        row = [] if all(each.endswith("=max") for each in limits) else [text]
        (self._mount / "batch" / name).write_text("\n".join((*others, *row)))


class Disks(IoMax):
    """io.max of one cgroup of a host with the disks 8:0 and 8:16."""

    def __init__(self, home: Path, rows: str = "") -> None:
        super().__init__(home, "v2", "v2")
        self.devices = home / "dev"
        self.devices.mkdir()
        for disk in ("8:0", "8:16"):
            (self.devices / disk).touch()
        self.target = cgroup(home)
        (home / "batch/io.max").write_text(rows)
        self.executor = Executor(Journal(home / "journal"), [self])

    def unsupported_reason(self) -> str | None:
        return None

    def open(self, target: Target) -> Cgroup:
        return DiskFile(self.mount, target, self.devices)

    def limit(self, value: str) -> Outcome:
        """Set *value* in place of the present one."""
        action = Action(
            target=self.target,
            knob=Knob.IO_MAX,
            previous=self.read(self.target),
            value=KnobValue(value),
            reason="test",
        )
        (outcome,) = self.executor.execute([action], now_ns=0)
        return outcome

    def remove(self, disk: str) -> None:
        (self.devices / disk).unlink()

    def restore(self) -> tuple[Restored, KnobValue]:
        (result,) = self.executor.restore_all().results
        return result.result, self.read(self.target)


BOTH = "8:0 rbps=100;8:16 rbps=100"


def test_after_the_removal_of_a_disk_the_others_are_restored(tmp_path: Path) -> None:
    disks = Disks(tmp_path)
    assert disks.limit(BOTH).applied == BOTH
    disks.remove("8:0")
    (reading,) = disks.executor.read([disks.target])
    assert (reading.value, reading.original) == ("8:16 rbps=100", "max")
    assert not disks.executor.overwritten
    assert disks.restore() == (Restored.RESTORED, "max")


def test_the_original_limit_of_a_removed_disk_is_not_restored(tmp_path: Path) -> None:
    disks = Disks(tmp_path, "8:0 rbps=900\n8:16 rbps=900\n")
    disks.limit(BOTH)
    disks.remove("8:16")
    assert disks.restore() == (Restored.RESTORED, "8:0 rbps=900")
    assert not disks.executor.held()


def test_without_its_only_disk_there_is_nothing_to_restore(tmp_path: Path) -> None:
    disks = Disks(tmp_path)
    disks.limit("8:16 rbps=100")
    disks.remove("8:16")
    (reading,) = disks.executor.read([disks.target])
    assert (reading.value, reading.original) == ("max", "max")
    assert not disks.executor.overwritten
    assert disks.restore() == (Restored.ALREADY, "max")


def test_the_disks_that_are_left_are_limited(tmp_path: Path) -> None:
    disks = Disks(tmp_path)
    disks.remove("8:0")
    outcome = disks.limit(BOTH)
    assert (outcome.failure, outcome.applied) == (None, "8:16 rbps=100")
    assert disks.restore() == (Restored.RESTORED, "max")


def test_the_lifted_limit_of_a_disk_that_exists_is_foreign(tmp_path: Path) -> None:
    disks = Disks(tmp_path)
    disks.limit(BOTH)
    (tmp_path / "batch/io.max").write_text("8:0 rbps=100\n")
    (reading,) = disks.executor.read([disks.target])
    assert (reading.value, reading.original) == ("8:0 rbps=100", None)
    assert disks.executor.overwritten == {Knob.IO_MAX: 1}
    assert disks.restore() == (Restored.RESTORED, "max"), "the limit of the other disk is ours"


def test_a_disk_that_exists_and_has_no_limits_is_refused(tmp_path: Path) -> None:
    # As the kernel refuses a partition, with the same error.
    disks = Disks(tmp_path)
    disks.remove("8:16")
    disks.devices = tmp_path / "sys"
    (disks.devices / "8:16").mkdir(parents=True)
    file = DiskFile(tmp_path, disks.target, tmp_path / "dev")
    with file, pytest.raises(RefusedError, match="8:16"):
        disks.write_step(file, Step("io.max", "8:16 rbps=1", KnobValue("8:16 rbps=1")))
