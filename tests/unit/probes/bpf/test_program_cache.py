# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Files of compiled programs: what is used, what is ignored with a message, what is dropped."""

from collections.abc import Callable, Mapping
import os
from pathlib import Path

import pytest

from controller.probes.bpf.compiled import Compiled, MapSpec
from controller.probes.bpf.program_cache import ProgramCache, cache_key
from tests.support.needs import needs_root

PROGRAM = Compiled(
    {"runs": MapSpec(2, 4, 8, 1, 1024)}, {"run": bytes(range(16))}, {"run": {0: "runs"}}
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a cache that has PROGRAM as ``key``."""
    directory = tmp_path / "programs"
    cache = ProgramCache(directory)
    cache.put("key", PROGRAM)
    assert not cache.problems
    return directory


def test_a_program_is_kept_for_root_alone(directory: Path) -> None:
    cache = ProgramCache(directory)
    assert cache.get("key") == PROGRAM
    assert cache.get("other") is None
    assert not cache.problems
    assert directory.stat().st_mode & 0o777 == 0o700
    assert (directory / "key").stat().st_mode & 0o777 == 0o600


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)


def replace_by_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (flip, "damaged"),
        (lambda path: path.write_bytes(b""), "damaged"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "damaged"),
        (lambda path: path.chmod(0o620), "can be written by other users"),
        (lambda path: path.parent.chmod(0o702), "can be written by other users"),
        (lambda path: path.parent.parent.chmod(0o777), "can be written by other users"),
        (lambda path: os.chown(path, 1, -1), "can be written by other users"),
        (lambda path: os.chown(path.parent, 1, -1), "can be written by other users"),
        (replace_by_link, "symbolic links"),
        (replace_by_pipe, "not a regular file"),
    ],
)
@needs_root("to make files of other users")
def test_a_file_that_is_not_what_was_written_is_ignored_with_one_line(
    directory: Path, harm: Callable[[Path], object], words: str
) -> None:
    harm(directory / "key")
    cache = ProgramCache(directory)
    assert cache.get("key") is None
    assert len(cache.problems) == 1
    assert words in cache.problems[0]


def test_a_damaged_file_is_replaced(directory: Path) -> None:
    flip(directory / "key")
    cache = ProgramCache(directory)
    cache.put("key", PROGRAM)
    assert cache.get("key") == PROGRAM


def test_a_content_of_another_form_is_ignored(directory: Path) -> None:
    cache = ProgramCache(directory)
    for broken in (
        Compiled({"runs": MapSpec(*"abcde")}, {}, {}),
        Compiled({}, {}, {"run": "runs"}),  # type: ignore[dict-item]
    ):
        cache.put("key", broken)
        assert cache.get("key") is None
    assert len(cache.problems) == 2


def test_the_oldest_are_dropped(directory: Path) -> None:
    cache = ProgramCache(directory)
    for number in range(40):
        cache.put(f"{number}", PROGRAM)
        os.utime(directory / f"{number}", ns=(number, number))
    names = {path.name for path in directory.iterdir()}
    assert len(names) == 32
    assert "39" in names
    assert "0" not in names


def test_a_directory_that_cannot_be_made_costs_one_line(tmp_path: Path) -> None:
    (tmp_path / "programs").write_text("")
    cache = ProgramCache(tmp_path / "programs")
    cache.put("key", PROGRAM)
    assert len(cache.problems) == 1


def test_the_key_names_everything_that_the_program_depends_on(tmp_path: Path) -> None:
    headers, btf = tmp_path / "include", tmp_path / "btf"
    (headers / "linux").mkdir(parents=True)
    (headers / "linux" / "a.h").write_text("")
    btf.write_bytes(b"btf")

    def key(source: str = "int x;", defines: Mapping[str, int] = {"A": 1}, btf: Path = btf) -> str:
        return cache_key(source, headers, defines, btf=btf)

    keys = [key(), key("int y;"), key(defines={"A": 2}), key(btf=tmp_path / "none")]
    assert keys[0] == key()
    (headers / "linux" / "a.h").write_text("#define A")
    keys.append(key())
    assert len(set(keys)) == 5
