# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Records that another program removes while their knobs are held."""

from collections.abc import Callable
import contextlib
import os
from pathlib import Path
import shutil

from hypothesis import given
from hypothesis import strategies as st
import pytest

from actuators.core_scheduling.registry import CookieRegistry
from actuators.journal import Journal, JournalError
from actuators.record import Record
from controller.core.model import Knob, KnobValue, Target, TargetKind
from tests.support.descriptors import no_more_files

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")


def record(number: int, intended: str = "5000 10000 0") -> Record:
    target = Target(TargetKind.CGROUP, "cpu", number, f"/be/{number}")
    original = KnobValue("max 100000 0")
    return Record(target, Knob.CPU_QUOTA, original, original, KnobValue(intended))


RECORDS = (record(1), record(2))


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path / "state" / "journal")
    for each in RECORDS:
        journal.put(each)
    return journal


def on_disk(journal: Journal) -> set[Record]:
    return set(Journal(journal.directory).records)


def replace(directory: Path) -> None:
    directory.rename(directory.with_name("aside"))
    directory.mkdir(mode=0o700)


def go_back_in_time(directory: Path) -> None:
    """Replace the directory by a copy in which a record has other values."""
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    Journal(copy).put(record(1, "7000 10000 0"))
    directory.rename(directory.with_name("aside"))
    copy.rename(directory)


@pytest.mark.parametrize(
    "lose",
    [
        lambda directory: shutil.rmtree(directory.parent),
        shutil.rmtree,
        replace,
        lambda directory: next(directory.iterdir()).unlink(),
        go_back_in_time,
    ],
)
def test_what_is_lost_is_stored_again(journal: Journal, lose: Callable[[Path], None]) -> None:
    assert not journal.renew()
    lose(journal.directory)
    assert journal.renew()
    assert journal.complete
    assert on_disk(journal) == set(RECORDS)
    assert not journal.renew()
    assert journal.directory.stat().st_mode & 0o777 == 0o700
    assert {each.suffix for each in journal.directory.iterdir()} == {".json"}


@given(st.lists(st.sampled_from(["put 1", "put 2", "drop 1", "drop 2", "lose", "unlink", "renew"])))
def test_after_each_renewal_the_disk_has_what_memory_has(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    journal = Journal(tmp_path_factory.mktemp("state") / "journal")
    for step in [*steps, "renew"]:
        kind, _, number = step.partition(" ")
        match kind:
            case "put":
                with contextlib.suppress(JournalError):
                    journal.put(record(int(number)))
            case "drop":
                journal.remove(record(int(number)))
            case "lose":
                shutil.rmtree(journal.directory, ignore_errors=True)
            case "unlink":
                for each in journal.directory.glob("*.json"):
                    each.unlink()
            case "renew":
                before = set(journal.records)
                journal.renew()
                assert journal.complete
                assert set(journal.records) == on_disk(journal) == before


def test_a_shortage_of_this_process_loses_nothing(journal: Journal) -> None:
    with no_more_files(), pytest.raises(JournalError, match="Too many open files"):
        journal.renew()
    assert journal.complete
    assert not journal.renew()


def test_what_cannot_be_stored_again_is_told_each_time(journal: Journal) -> None:
    shutil.rmtree(journal.directory)
    journal.directory.write_text("in its place")
    for _ in range(2):
        with pytest.raises(JournalError, match="no knob gets a new value"):
            journal.renew()
        assert not journal.complete
    journal.directory.unlink()
    assert journal.renew()
    assert journal.complete
    assert on_disk(journal) == set(RECORDS)


@needs_root
def test_a_directory_that_others_own_has_no_record(journal: Journal) -> None:
    os.chown(journal.directory, 65534, 65534)
    with pytest.raises(JournalError, match="belongs to user 65534"):
        journal.renew()
    assert not journal.complete
    for each in RECORDS:
        journal.remove(each)
    with pytest.raises(JournalError):
        journal.renew()
    assert journal.complete  # nothing is held


@needs_root
def test_a_full_disk_is_told_and_its_records_are_complete(small_disk: Path) -> None:
    journal = Journal(small_disk / "journal")
    journal.put(RECORDS[0])
    with contextlib.suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with pytest.raises(JournalError, match="No space left"):
        journal.renew()
    assert journal.complete
    shutil.rmtree(journal.directory)  # the space that this frees is taken first
    with contextlib.suppress(OSError), (small_disk / "ballast").open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with pytest.raises(JournalError, match="No space left"):
        journal.renew()
    assert not journal.complete
    (small_disk / "ballast").unlink()
    assert journal.renew()
    assert on_disk(journal) == {RECORDS[0]}


def test_cookies_outlive_the_loss_of_their_registry(tmp_path: Path) -> None:
    directory = tmp_path / "cookies"
    registry = CookieRegistry(directory)
    assert registry.complete
    assert not registry.renew()
    registry.add_group("a")
    # A helper process adds a cookie. Its file is lost before this process reads it.
    CookieRegistry(directory).add_cookie("a", 7)
    shutil.rmtree(directory)
    registry.reload()
    registry.remember("a", 7)
    assert registry.cookies == {7: "a"}
    assert registry.renew()
    assert CookieRegistry(directory).cookies == {7: "a"}
    assert CookieRegistry(directory).groups == {"a"}
    CookieRegistry(directory).add_cookie("a", 8)
    registry.reload()
    assert registry.cookies == {7: "a", 8: "a"}
