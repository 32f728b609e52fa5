# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The journal on disk: records are loaded again, and damage is limited to its file."""

import errno
import json
import logging
import os
from pathlib import Path
import zlib

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
import pytest

from actuators import journal as journal_module
from actuators.journal import Journal, JournalError, Record
from controller.core.model import Knob, KnobValue, Target, TargetKind
from tests.support.needs import needs_root


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
    assert set(found.records) == set(kept)
    assert not found.kept


def test_only_the_owner_may_write(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir(mode=0o755)
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
    assert "newer version" in journal.kept[path]
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
    bad = victim.with_suffix(".bad")
    assert list(found.kept) == [bad]
    assert bad.read_bytes() == damage
    assert list(found.records) == [record(2)]
    errors = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert str(victim) in errors[0].getMessage()
    assert list(Journal(tmp_path).kept) == [bad]


def test_a_record_that_cannot_be_read_for_a_moment_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Journal(tmp_path).put(record(1))
    path = only_file(tmp_path)

    def short(path: Path) -> bytes:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as patched:
        patched.setattr(journal_module, "read_file", short)
        journal = Journal(tmp_path)
        assert list(journal.kept) == [path]
        assert not journal.records
    again = Journal(tmp_path)
    assert not again.kept
    assert list(again.records) == [record(1)]


@pytest.mark.parametrize("name", ["{}.v2.json", "{}.json", "{}.bad"])
def test_a_knob_with_a_record_that_cannot_be_evaluated_is_not_written(
    tmp_path: Path, name: str
) -> None:
    Journal(tmp_path).put(record(1))
    path = only_file(tmp_path)
    rewrite(path, format=2)
    path = path.rename(tmp_path / name.format(path.stem))
    before = path.read_bytes()
    for _ in range(2):
        journal = Journal(tmp_path)
        assert list(journal.kept) == [path]
        assert journal.is_kept(record(1).target, record(1).knob)
        assert not journal.is_kept(record(2).target, record(2).knob)
        with pytest.raises(JournalError, match=rf"there is {path}, .*; the knob is not changed"):
            journal.put(record(1))
        journal.put(record(2))
        assert not journal.get(record(1).target, record(1).knob)
        assert path.read_bytes() == before
    path.unlink()
    assert not journal.kept
    assert not journal.is_kept(record(1).target, record(1).knob)
    journal.put(record(1))


@pytest.mark.parametrize(
    "changes",
    [
        {"previous": 1},
        {"original": None},
        {"id": "1"},
        {"id": 2},
        {"scope": "net"},
        {"scope": "\ud800"},
    ],
)
def test_a_valid_checksum_does_not_excuse_odd_fields(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    Journal(tmp_path).put(record(1))
    path = only_file(tmp_path)
    rewrite(path, **changes)
    before = path.read_bytes()
    journal = Journal(tmp_path)
    assert not journal.records
    assert list(journal.kept) == [path.with_suffix(".bad")]
    assert path.with_suffix(".bad").read_bytes() == before
    assert journal.is_kept(record(1).target, record(1).knob)


def test_a_record_beside_a_damaged_one_is_kept_too(tmp_path: Path) -> None:
    # Version 0.1 renamed the damaged record and took the value that it found for the original.
    Journal(tmp_path).put(record(1))
    path = only_file(tmp_path)
    path.with_suffix(".bad").write_bytes(b"{")
    journal = Journal(tmp_path)
    assert not journal.records
    assert set(journal.kept) == {path, path.with_suffix(".bad")}
    path.with_suffix(".bad").unlink()
    assert Journal(tmp_path).records == (record(1),)


def test_a_renamed_cgroup_has_the_same_record(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.put(record(1))
    renamed = record(1)._replace(target=record(1).target._replace(path="/renamed"))
    assert journal.get(renamed.target, renamed.knob) == record(1)
    journal.put(renamed)
    assert journal.records == Journal(tmp_path).records == (renamed,)


def test_a_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path / "journal").put(record())
    (tmp_path / "journal").chmod(0o1777)
    with pytest.raises(JournalError, match=r"others .* may write it \(mode 1777\).*state_dir"):
        Journal(tmp_path / "journal")
    (tmp_path / "journal").chmod(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "journal")
    with pytest.raises(JournalError, match="link: "):
        Journal(tmp_path / "link")


@needs_root("to give a file away")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path / "journal").put(record())
    os.chown(tmp_path / "journal", 65534, 65534)
    with pytest.raises(JournalError, match="belongs to user 65534, not to root"):
        Journal(tmp_path / "journal")


@pytest.mark.parametrize("spoil", ["writable", "owner", "link"])
def test_a_record_of_others_is_not_trusted(
    tmp_path: Path, spoil: str, caplog: pytest.LogCaptureFixture
) -> None:
    Journal(tmp_path / "journal").put(record(1))
    path = only_file(tmp_path / "journal")
    if spoil == "writable":
        path.chmod(0o660)
    elif spoil == "link":
        path.symlink_to(path.rename(tmp_path / "elsewhere"))
    else:
        os.chown(path, 65534, -1)
    journal = Journal(tmp_path / "journal")
    assert not journal.records
    assert journal.is_kept(record(1).target, record(1).knob)
    assert str(path) in caplog.text


def test_a_record_is_for_its_owner_only_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Journal(tmp_path / "journal").put(record())
    finally:
        os.umask(before)
    assert only_file(tmp_path / "journal").stat().st_mode & 0o777 == 0o600
    assert Journal(tmp_path / "journal").records == (record(),)


def test_an_incomplete_write_has_no_effect(tmp_path: Path) -> None:
    def die(step: str) -> None:
        if step == "before journal rename":
            raise KeyboardInterrupt

    Journal(tmp_path).put(record(1))
    with pytest.raises(KeyboardInterrupt):
        Journal(tmp_path, die).put(record(1)._replace(intended=KnobValue("9000 10000 0")))
    assert len(list(tmp_path.iterdir())) == 2
    assert Journal(tmp_path).records == (record(1),)
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
