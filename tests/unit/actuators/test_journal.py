# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The journal on disk: records are loaded again, and damage is limited to its file."""

import json
import logging
from pathlib import Path
import zlib

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
import pytest

from actuators.journal import Journal, JournalError, Record
from controller.core.model import Knob, KnobValue, Target, TargetKind


def record(number: int = 1, *, scope: str = "cpu", knob: Knob = Knob.CPU_QUOTA) -> Record:
    return Record(
        Target(TargetKind.CGROUP, scope, number, f"/be/ä {number}"),
        knob,
        original=KnobValue("max 100000 0"),
        previous=KnobValue("max 100000 0"),
        intended=KnobValue("5000 10000 0"),
    )


def rewrite(path: Path, **changes: object) -> None:
    """Change fields of a record file and correct its checksum."""
    body = json.loads(path.read_bytes())
    del body["crc"]
    body |= changes
    body["crc"] = zlib.crc32(json.dumps(body, sort_keys=True).encode())
    path.write_text(json.dumps(body))


def only_file(directory: Path) -> Path:
    (path,) = directory.glob("*.json")
    return path


def test_records_are_loaded_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    kept = [record(1), record(2), record(2, scope="net/a"), record(2, scope="net-a")]
    kept.append(record(1, knob=Knob.SCHED_IDLE))
    kept += [record(0), record(0)._replace(target=record(0).target._replace(path="/other"))]
    for each in [*kept, record(3)]:
        journal.put(each)
    journal.remove(record(3))
    found = Journal(tmp_path / "journal")
    assert set(found.records.values()) == set(kept)
    assert found.unreadable == found.unknown == []


def test_only_the_owner_may_write(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir(mode=0o777)
    for name in ("journal", "new"):
        Journal(tmp_path / name)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700


def test_a_record_of_another_boot_is_dropped_silently(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Journal(tmp_path).put(record())
    rewrite(only_file(tmp_path), boot_id="another")
    assert not Journal(tmp_path).records
    assert not list(tmp_path.iterdir())
    assert not caplog.records


@pytest.mark.parametrize("changes", [{"knob": "warp.drive"}, {"format": 2}, {"kind": "planet"}])
def test_a_record_of_a_newer_version_is_kept_and_reported(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    Journal(tmp_path).put(record())
    path = only_file(tmp_path)
    rewrite(path, **changes)
    journal = Journal(tmp_path)
    assert not journal.records
    assert journal.unknown == [str(path)]
    assert path.exists()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_renamed_and_the_others_are_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: st.DataObject
) -> None:
    for old in tmp_path.iterdir():
        old.unlink()
    journal = Journal(tmp_path)
    journal.put(record(1))
    victim = only_file(tmp_path)
    journal.put(record(2))
    whole = victim.read_bytes()
    damage = data.draw(
        st.one_of(
            st.binary(max_size=80),
            st.integers(0, len(whole) - 1).map(lambda end: whole[:end]),
            st.tuples(st.integers(0, len(whole) - 1), st.integers(0x21, 0x7E)).map(
                lambda at: whole[: at[0]] + bytes([at[1]]) + whole[at[0] + 1 :]
            ),
        ).filter(lambda damaged: damaged != whole)
    )
    victim.write_bytes(damage)
    caplog.clear()
    found = Journal(tmp_path)
    assert found.unreadable == [str(victim)]
    assert victim.with_suffix(".bad").read_bytes() == damage
    assert list(found.records.values()) == [record(2)]
    errors = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert str(victim) in errors[0].getMessage()
    assert Journal(tmp_path).unreadable == []


def test_an_incomplete_write_has_no_effect(tmp_path: Path) -> None:
    def die(step: str) -> None:
        if step == "before journal rename":
            raise InterruptedError

    Journal(tmp_path).put(record(1))
    with pytest.raises(JournalError):
        Journal(tmp_path, die).put(record(1)._replace(intended=KnobValue("9000 10000 0")))
    assert list(Journal(tmp_path).records.values()) == [record(1)]
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def test_an_unusable_directory_is_one_clear_message(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text("not a directory")
    with pytest.raises(JournalError, match=r"journal: .*exists; make it a directory"):
        Journal(path)


def test_a_record_that_cannot_be_written_is_an_error_with_its_reason(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    (tmp_path / "journal").rmdir()
    with pytest.raises(JournalError, match="No such file") as error:
        journal.put(record())
    assert error.value.errno == 2
    assert not journal.records
