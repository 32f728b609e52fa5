# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The lock and the owner of the state directory."""

import os
from pathlib import Path
import subprocess

import pytest

from controller.host.state_dir import (
    Lock,
    LockError,
    has_records,
    owners,
    read_file,
    write_json,
)
from tests.support.needs import needs_root


def test_one_lock_at_a_time_with_the_pids_of_its_owners(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "state")
    lock.set_owners([os.getpid(), os.getppid()])
    assert owners(tmp_path / "state") == [os.getpid(), os.getppid()]
    lock.set_owners([os.getpid()])
    assert owners(tmp_path / "state") == [os.getpid()]
    with pytest.raises(LockError, match=f"already runs on this host \\({os.getpid()} holds") as e:
        Lock(tmp_path / "state")
    assert e.value.held
    lock.close()
    Lock(tmp_path / "state").close()


@pytest.mark.parametrize("mode", [0o1777, 0o770, 0o702])
def test_a_directory_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    state = tmp_path / "state"
    Lock(state).close()
    state.chmod(mode)
    with pytest.raises(LockError, match=r"others than its owner may write it .*not trusted") as e:
        Lock(state)
    assert not e.value.held
    assert "choose another state_dir" in str(e.value)


@needs_root("to give a directory away")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    Lock(state).close()
    os.chown(state, 65534, 65534)
    with pytest.raises(LockError, match="belongs to user 65534, not to root"):
        Lock(state)


def test_a_process_that_has_ended_is_no_owner_before_its_parent_knows(tmp_path: Path) -> None:
    """In a container nothing may reap a killed agent for good."""
    state_dir = tmp_path / "state"
    lock = Lock(state_dir)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        lock.set_owners([child.pid])
        assert owners(state_dir) == [child.pid]
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert owners(state_dir) == []
    lock.close()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(LockError, match="cannot open"):
        Lock(tmp_path / "link")
    (tmp_path / "real" / "lock").symlink_to("/dev/null")
    with pytest.raises(LockError, match="cannot open"):
        Lock(tmp_path / "real")
    (tmp_path / "file").symlink_to("/etc/hostname")
    with pytest.raises(OSError, match="symbolic link"):
        read_file(tmp_path / "file")


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    assert read_file(tmp_path / "file") == b"x"
    (tmp_path / "file").chmod(0o620)
    with pytest.raises(PermissionError, match="others than its owner may write it"):
        read_file(tmp_path / "file")


def test_an_empty_journal_needs_no_restore(tmp_path: Path) -> None:
    assert not has_records(tmp_path)
    (tmp_path / "journal").mkdir()
    assert not has_records(tmp_path)
    (tmp_path / "journal" / "x.bad").write_bytes(b"")
    assert has_records(tmp_path)


def test_a_journal_that_cannot_be_read_may_have_records(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b"")
    assert has_records(tmp_path)


@needs_root("to mount")
def test_a_file_that_does_not_fit_takes_no_space(small_disk: Path) -> None:
    path = small_disk / "x.json"
    write_json(path, "before")
    with pytest.raises(OSError, match="No space left"):
        write_json(path, "x" * 200_000)
    assert [each.name for each in small_disk.iterdir()] == ["x.json"]
    assert path.read_text() == '"before"'
