# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Offsets from a BTF blob that is made here, and the errors of files that are none."""

from pathlib import Path
import struct

import pytest

from controller.probes.bpf.btf import Btf, BtfError, ancestor_offsets

INT, STRUCT, UNION, TYPEDEF, CONST = 1, 4, 5, 8, 10
Member = tuple[str, int, int]  # name, type, offset in bits


class Blob:
    """BTF under construction: types get their ids in the order of the calls, from 1 on."""

    def __init__(self) -> None:
        self._types = b""
        self._strings = b"\0"
        self.number()  # type 1

    def number(self) -> None:
        self._types += struct.pack("=IIII", self._string("int"), INT << 24, 4, 32)

    def refer(self, kind: int, target: int) -> None:
        name = self._string("name") if kind == TYPEDEF else 0
        self._types += struct.pack("=III", name, kind << 24, target)

    def record(self, kind: int, name: str, members: list[Member], *, bits: bool = False) -> None:
        info = bits << 31 | kind << 24 | len(members)
        self._types += struct.pack("=III", self._string(name), info, 64)
        for member, type_id, offset in members:
            self._types += struct.pack("=III", self._string(member), type_id, offset)

    def _string(self, text: str) -> int:
        if not text:
            return 0
        self._strings += text.encode() + b"\0"
        return len(self._strings) - len(text) - 1

    def write(self, path: Path) -> Path:
        sizes = (0, len(self._types), len(self._types), len(self._strings))
        header = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, *sizes)
        path.write_bytes(header + self._types + self._strings)
        return path


@pytest.fixture
def btf(tmp_path: Path) -> Btf:
    blob = Blob()
    blob.record(STRUCT, "inner", [("first", 1, 0), ("second", 1, 32)])  # 2
    blob.refer(CONST, 2)  # 3
    blob.refer(TYPEDEF, 3)  # 4
    blob.record(UNION, "", [("left", 1, 0), ("right", 4, 0)])  # 5
    members = [("zero", 1, 0), ("", 5, 64), ("named", 4, 128)]
    blob.record(STRUCT, "outer", members)  # 6
    flags = [("whole", 1, 32), ("flag", 1, 1 << 24 | 65)]
    blob.record(STRUCT, "fields", flags, bits=True)  # 7
    return Btf(blob.write(tmp_path / "btf"))


@pytest.mark.parametrize(
    ("name", "path", "offset"),
    [
        ("inner", "second", 4),
        ("outer", "zero", 0),
        ("outer", "left", 8),
        ("outer", "right.second", 12),
        ("outer", "named.second", 20),
        ("fields", "whole", 4),
    ],
)
def test_an_offset(btf: Btf, name: str, path: str, offset: int) -> None:
    assert btf.offset(name, path) == offset


@pytest.mark.parametrize(
    ("name", "path", "message"),
    [
        ("absent", "zero", "has no struct absent"),
        ("outer", "absent", "struct outer has no member absent"),
        ("outer", "zero.absent", "struct outer has no member zero.absent"),
        ("fields", "flag", "struct fields: flag is a bit field"),
    ],
)
def test_what_the_kernel_lacks_is_named(btf: Btf, name: str, path: str, message: str) -> None:
    with pytest.raises(BtfError, match=message):
        btf.offset(name, path)


def test_the_first_name_that_exists(btf: Btf) -> None:
    assert btf.first_offset("inner", "renamed", "second", "first") == 4
    with pytest.raises(BtfError, match="no member last"):
        btf.first_offset("inner", "renamed", "last")


@pytest.mark.parametrize(("member", "ids"), [("ancestors", 0), ("ancestor_ids", 1)])
def test_ancestors_of_both_generations_of_kernels(member: str, ids: int, tmp_path: Path) -> None:
    blob = Blob()
    blob.record(STRUCT, "kernfs_node", [("id", 1, 96)])
    blob.record(STRUCT, "cgroup", [("level", 1, 0), ("kn", 1, 64), (member, 1, 128)])
    assert ancestor_offsets(Btf(blob.write(tmp_path / "btf"))) == {
        "OFF_CGROUP_LEVEL": 0,
        "OFF_CGROUP_KN": 8,
        "OFF_KERNFS_ID": 12,
        "ANCESTOR_IDS": ids,
        "OFF_CGROUP_ANCESTORS": 16,
    }


@pytest.mark.parametrize("content", [b"", b"text", b"\x9f\xeb\x01", b"\0" * 100])
def test_a_file_that_is_no_btf(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "btf").write_bytes(content)
    with pytest.raises(BtfError, match="not the BTF of a kernel"):
        Btf(tmp_path / "btf")


def test_a_kernel_without_btf(tmp_path: Path) -> None:
    with pytest.raises(BtfError, match="CONFIG_DEBUG_INFO_BTF"):
        Btf(tmp_path / "btf")
