# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Documents in the data directory: versions, damage, owners, links, and a disk that is full."""

import os
from pathlib import Path
import subprocess

import pytest

from controller.host.store import Document, Store, StoreState
from tests.support.needs import needs_root
from tests.support.waiting import DEADLINE_S

NEWEST = 2
as_root = needs_root("to mount")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


def written(path: Path, content: object, version: int = 1) -> Store:
    """Return a store of *path* that wrote *content* as the document ``x``."""
    store = Store(path)
    store.write("x", version, content)
    assert store.flush(DEADLINE_S)
    return store


def test_what_is_written_is_read_by_the_next_store(path: Path) -> None:
    content = {"a": [1, 2.5, None, "\udcff ä"]}
    store = written(path, content)
    assert store.read("x", NEWEST) == Store(path).read("x", NEWEST) == Document(1, content)
    assert store.state == StoreState()
    assert path.stat().st_mode & 0o777 == 0o700
    (file,) = path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    store.write("x", NEWEST, "newer")
    store.close(DEADLINE_S)
    assert Store(path).read("x", NEWEST) == Document(NEWEST, "newer")
    assert [each.name for each in path.iterdir()] == ["x.json"]


def test_nothing_is_made_before_something_is_written(path: Path) -> None:
    store = Store(path)
    assert store.read("x", NEWEST) is None
    store.close(DEADLINE_S)
    assert store.state == StoreState()
    assert not path.exists()


def test_a_newer_version_is_left_alone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(path, "of a newer agent", version=NEWEST + 1)
    before = (path / "x.json").read_bytes()
    store = Store(path)
    for _ in range(2):
        assert store.read("x", NEWEST) is None
        store.write("x", NEWEST, "of this one")
        assert store.flush(DEADLINE_S)
    assert (path / "x.json").read_bytes() == before
    assert store.state.lost == {"x": 2}
    assert store.state.problems == {
        "x": "its version 3 is of a newer sweetpoint (known: 2): it is left alone"
    }
    assert len(caplog.records) == 1
    # Another document is not affected.
    store.write("y", NEWEST, 1)
    assert store.flush(DEADLINE_S)
    assert store.read("y", NEWEST) == Document(NEWEST, 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"version": 1}',
        b'{"version": true, "content": 1}',
        b'{"content": 1}',
        b'{"version": 1, "content": "' + b" " * 1000 + b'"}',
    ],
)
def test_a_damaged_document_is_set_aside(path: Path, data: bytes) -> None:
    written(path, 1)
    (path / "x.json").write_bytes(data)
    store = Store(path, max_bytes=1000)
    assert store.read("x", NEWEST) is None
    assert "it is damaged" in store.state.problems["x"]
    assert (path / "x.json.damaged").read_bytes() == data
    store.write("x", 1, "again")
    assert store.flush(DEADLINE_S)
    assert store.read("x", NEWEST) == Document(1, "again")
    assert store.state == StoreState()


def test_a_document_that_is_too_large_is_not_written(path: Path) -> None:
    store = Store(path, max_bytes=100)
    store.write("x", 1, "kept")
    store.write("x", 1, "y" * 100)
    store.write("x", 1, float("nan"))
    assert store.flush(DEADLINE_S)
    assert store.read("x", NEWEST) == Document(1, "kept")
    assert store.state.lost == {"x": 2}


def test_links_are_not_followed(tmp_path: Path, path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text('{"version": 1, "content": "foreign"}')
    store = written(path, 1)
    for name in ("x.json", "x.json.new"):
        (path / name).unlink(missing_ok=True)
        (path / name).symlink_to(victim)
    assert store.read("x", NEWEST) is None
    store.write("x", 1, "own")
    assert store.flush(DEADLINE_S)
    assert store.read("x", NEWEST) == Document(1, "own")
    assert "foreign" in victim.read_text()
    (tmp_path / "link").symlink_to(path)
    linked = Store(tmp_path / "link")
    assert linked.read("x", NEWEST) is None
    linked.write("x", 1, "through the link")
    assert linked.flush(DEADLINE_S)
    assert linked.state.lost == {"x": 1}
    assert store.read("x", NEWEST) == Document(1, "own")


@pytest.mark.parametrize("mode", [0o777, 0o720])
def test_a_directory_that_others_may_write_is_not_used(path: Path, mode: int) -> None:
    store = written(path, 1)
    path.chmod(mode)
    assert store.read("x", NEWEST) is None
    store.write("x", 1, 2)
    assert store.flush(DEADLINE_S)
    assert store.state.lost == {"x": 1}
    assert "not trusted" in store.state.problems["x"]


def test_a_directory_that_others_may_read_is_closed_to_them(path: Path) -> None:
    path.mkdir()
    path.chmod(0o755)
    written(path, 1)
    assert path.stat().st_mode & 0o777 == 0o700


@as_root
@pytest.mark.parametrize("name", ["", "x.json"])
def test_what_another_user_owns_is_not_read(path: Path, name: str) -> None:
    store = written(path, 1)
    os.chown(path / name, 65534, 65534)
    assert store.read("x", NEWEST) is None
    assert "belongs to user 65534" in store.state.problems["x"]


def test_a_pipe_is_not_waited_for(path: Path) -> None:
    written(path, 1)
    (path / "x.json").unlink()
    os.mkfifo(path / "x.json", 0o600)
    assert Store(path).read("x", NEWEST) is None


@as_root
def test_a_full_disk_loses_the_write_and_keeps_the_document(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = written(small_disk, "before")
    for content in ("x" * 200_000, "y" * 200_000):
        store.write("x", 1, content)
        assert store.flush(DEADLINE_S)
    assert store.state.lost == {"x": 2}
    assert store.state.problems == {"x": "it cannot be written: No space left on device"}
    assert len(caplog.records) == 1
    assert store.read("x", NEWEST) == Document(1, "before")
    assert [each.name for each in small_disk.iterdir()] == ["x.json"]
    store.write("x", 1, "after")
    assert store.flush(DEADLINE_S)
    assert store.read("x", NEWEST) == Document(1, "after")
    assert store.state.problems == {}


@as_root
def test_a_read_only_disk(small_disk: Path) -> None:
    store = written(small_disk, "before")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    store.write("x", 1, "after")
    assert store.flush(DEADLINE_S)
    assert store.read("x", NEWEST) == Document(1, "before")
    assert store.state.problems == {"x": "it cannot be written: Read-only file system"}


def test_a_missing_parent_is_not_made(tmp_path: Path) -> None:
    store = Store(tmp_path / "not mounted" / "data")
    store.write("x", 1, 1)
    assert store.flush(DEADLINE_S)
    assert store.state.lost == {"x": 1}
    assert not (tmp_path / "not mounted").exists()
