# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A ring of files: its size, damage of all kinds, a full disk."""

import gzip
from pathlib import Path
from random import Random

import pytest

from controller.host.ring import Ring, RingReader
from tests.support.needs import needs_root

as_root = needs_root("to mount")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "history"


def ring(path: Path, max_bytes: int = 1 << 20) -> Ring:
    return Ring(path, "x", max_bytes, lambda: b"head\n")


def lines(path: Path) -> tuple[list[str], int]:
    reader = RingReader(path, "x")
    return [line.decode() for line in reader.lines()], reader.damaged


def test_what_is_appended_is_read_in_order(path: Path) -> None:
    for number in range(3):
        ring(path).append(f"{number} a\n{number} b\n".encode())
    assert lines(path) == (["head", "0 a", "0 b", "1 a", "1 b", "2 a", "2 b"], 0)
    (file,) = path.iterdir()
    assert gzip.decompress(file.read_bytes()).startswith(b"head\n0 a\n")
    assert file.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_mode & 0o777 == 0o700
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_the_oldest_lines_go_and_every_file_has_a_head(path: Path) -> None:
    random, max_bytes = Random(1), 64 << 10
    for number in range(400):
        ring(path, max_bytes).append(b"%d %s\n" % (number, random.randbytes(400).hex().encode()))
        assert sum(each.stat().st_size for each in path.iterdir()) <= max_bytes
    found, damaged = lines(path)
    assert damaged == 0
    numbers = [int(line.split()[0]) for line in found if line != "head"]
    assert numbers == list(range(numbers[0], 400))
    assert 50 < numbers[0] < 350
    assert found.count("head") == len(list(path.iterdir())) > 5
    # Another size applies at once.
    ring(path, max_bytes // 4).append(b"400\n")
    assert sum(each.stat().st_size for each in path.iterdir()) <= max_bytes // 4


def test_a_start_continues_the_newest_file(path: Path) -> None:
    for number in range(100):
        ring(path).append(b"%d\n" % number)
    assert len(list(path.iterdir())) == 1


@pytest.mark.parametrize("keep", [0, 1, 11, 30, -1])
def test_a_block_that_was_cut_off_costs_itself_only(path: Path, keep: int) -> None:
    ring(path).append(b"first\n")
    (file,) = path.iterdir()
    whole = file.stat().st_size
    ring(path).append(b"second, which a crash cuts off\n")
    with file.open("r+b") as opened:
        opened.truncate(whole + keep if keep >= 0 else file.stat().st_size - 1)
    ring(path).append(b"third\n")
    found, damaged = lines(path)
    assert found == ["head", "first", "third"]
    assert damaged == (keep != 0)


def test_random_damage_never_raises_and_never_invents(path: Path) -> None:
    random = Random(2)
    wanted = [f"line {number}" for number in range(40)]
    for line in wanted:
        ring(path).append(f"{line}\n".encode())
    (file,) = path.iterdir()
    good = file.read_bytes()
    damaged_once = False
    for _ in range(300):
        data = bytearray(good)
        for _ in range(random.randrange(1, 4)):
            at = random.randrange(len(data))
            data[at : at + random.randrange(1, 60)] = random.randbytes(random.randrange(40))
        file.write_bytes(data)
        found, damaged = lines(path)
        assert set(found) <= {"head", *wanted}
        numbers = [int(line.split()[1]) for line in found if line != "head"]
        assert numbers == sorted(numbers)
        # Three changes of at most sixty bytes reach into four blocks of 28 bytes each.
        assert len(found) >= 41 - 3 * 4
        damaged_once |= damaged > 0
    assert damaged_once


def test_foreign_files_and_links_are_left_alone(tmp_path: Path, path: Path) -> None:
    ring(path).append(b"own\n")
    victim = tmp_path / "victim"
    victim.write_bytes(b"")
    (path / "x-00000009.jsonl.gz").symlink_to(victim)
    (path / "README").write_text("mine")
    ring(path).append(b"more\n")
    assert victim.read_bytes() == b""
    assert (path / "README").read_text() == "mine"
    assert lines(path)[0] == ["head", "own", "more"]


def test_files_that_others_may_write_are_not_read(path: Path) -> None:
    ring(path).append(b"own\n")
    (file,) = path.iterdir()
    file.chmod(0o666)
    reader = RingReader(path, "x")
    assert list(reader.lines()) == []
    assert "not trusted" in reader.problem
    with pytest.raises(PermissionError):
        ring(path).append(b"more\n")


@as_root
def test_a_full_disk_costs_what_does_not_fit(small_disk: Path) -> None:
    path, random = small_disk / "history", Random(3)
    ring(path).append(b"before\n")
    with pytest.raises(OSError, match="No space left"):
        ring(path).append(random.randbytes(200_000).hex().encode())
    assert lines(path) == (["head", "before"], 0)
    ring(path).append(b"after\n")
    assert lines(path) == (["head", "before", "after"], 0)
    # There is no room for a new file either: no file without a head is left.
    (small_disk / "ballast").write_bytes(bytes(40_000))
    new = Ring(path, "y", 1 << 20, lambda: random.randbytes(100_000))
    with pytest.raises(OSError, match="No space left"):
        new.append(b"z\n")
    assert [each.name for each in path.iterdir()] == ["x-00000001.jsonl.gz"]
