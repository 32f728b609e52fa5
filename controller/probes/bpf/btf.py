# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Struct offsets of the running kernel, read from its BTF.

The probes are compiled without kernel headers: every offset they use is looked up here and passed
to the compiler. A member that this kernel does not have is then a named error at start, whereas
headers of another kernel would give wrong numbers without an error. Only structs and their
members are decoded; the format is described in Documentation/bpf/btf.rst. A parser of our own,
because bcc has no relocations and the doctor runs without installed packages.
"""

from collections.abc import Iterator
from pathlib import Path
import struct

__all__ = ("Btf", "BtfError", "ancestor_offsets")

_MAGIC = 0xEB9F
_KIND_STRUCT = 4
_KIND_UNION = 5
# Bytes after the 12-byte btf_type, by kind: (fixed, per vlen entry).
_EXTRA_BYTES = {
    1: (4, 0),  # INT
    2: (0, 0),  # PTR
    3: (12, 0),  # ARRAY
    _KIND_STRUCT: (0, 12),
    _KIND_UNION: (0, 12),
    6: (0, 8),  # ENUM
    7: (0, 0),  # FWD
    8: (0, 0),  # TYPEDEF
    9: (0, 0),  # VOLATILE
    10: (0, 0),  # CONST
    11: (0, 0),  # RESTRICT
    12: (0, 0),  # FUNC
    13: (0, 8),  # FUNC_PROTO
    14: (4, 0),  # VAR
    15: (0, 12),  # DATASEC
    16: (0, 0),  # FLOAT
    17: (4, 0),  # DECL_TAG
    18: (0, 0),  # TYPE_TAG
    19: (0, 12),  # ENUM64
}
_MODIFIERS = (8, 9, 10, 11, 18)  # typedef, volatile, const, restrict, type tag


class BtfError(Exception):
    """There is no usable BTF, or this kernel does not have a struct or member."""


class Btf:
    """The type information of one kernel.

    :param path: the raw BTF blob, normally ``/sys/kernel/btf/vmlinux``.
    :raises BtfError: the file is missing, unreadable or not BTF of this byte order.
    """

    def __init__(self, path: Path = Path("/sys/kernel/btf/vmlinux")) -> None:
        try:
            self._data = path.read_bytes()
        except OSError as err:
            raise BtfError(
                f"{path}: {err.strerror}; the kernel must be built with CONFIG_DEBUG_INFO_BTF"
            ) from err
        try:
            magic, _, _, header, type_off, type_len, str_off, str_len = struct.unpack_from(
                "<HBBIIIII", self._data
            )
        except struct.error as err:
            raise BtfError(f"{path}: too short for BTF") from err
        if magic != _MAGIC:
            raise BtfError(f"{path}: not little-endian BTF")
        self._strings = self._data[header + str_off : header + str_off + str_len]
        self._types: list[int] = [0]
        self._structs: dict[str, int] = {}
        self._index(header + type_off, header + type_off + type_len)

    def offset(self, struct_name: str, path: str) -> int:
        """Return the offset in bytes of member *path* (dots descend) of ``struct struct_name``.

        :raises BtfError: the struct or the member does not exist, or the member is a bit field.
        """
        bits, position = 0, self._struct(struct_name)
        for name in path.split("."):
            found = self._member(position, name)
            if found is None:
                raise BtfError(f"this kernel's struct {struct_name} has no member {path}")
            bits += found[0]
            position = self._types[self._resolve(found[1])]
        if bits % 8:
            raise BtfError(f"struct {struct_name}: {path} is a bit field")
        return bits // 8

    def first_offset(self, struct_name: str, *paths: str) -> int:
        """Return the offset of the first of *paths* that exists, for a member that was renamed.

        :raises BtfError: none of *paths* exists.
        """
        for path in paths[:-1]:
            try:
                return self.offset(struct_name, path)
            except BtfError:
                continue
        return self.offset(struct_name, paths[-1])

    def _index(self, position: int, end: int) -> None:
        unpack = struct.Struct("<II").unpack_from
        data = self._data
        while position < end:
            self._types.append(position)
            name_off, info = unpack(data, position)
            kind, vlen = info >> 24 & 0x1F, info & 0xFFFF
            if kind == _KIND_STRUCT and name_off:
                self._structs.setdefault(self._string(name_off), position)
            try:
                fixed, each = _EXTRA_BYTES[kind]
            except KeyError:
                raise BtfError(f"BTF kind {kind} is newer than this program") from None
            position += 12 + fixed + each * vlen

    def _struct(self, name: str) -> int:
        try:
            return self._structs[name]
        except KeyError:
            raise BtfError(f"this kernel has no struct {name}") from None

    def _member(self, position: int, name: str) -> tuple[int, int] | None:
        """Return (offset in bits, type) of *name*, also in anonymous members; else ``None``."""
        for member_off, member_type, bits in self._members(position):
            if member_off and self._string(member_off) == name:
                return bits, member_type
            if not member_off:
                inner = self._member(self._types[self._resolve(member_type)], name)
                if inner is not None:
                    return bits + inner[0], inner[1]
        return None

    def _members(self, position: int) -> Iterator[tuple[int, int, int]]:
        _, info, _ = self._header(position)
        if info >> 24 & 0x1F not in (_KIND_STRUCT, _KIND_UNION):
            return
        for entry in range(info & 0xFFFF):
            name_off, type_id, bits = struct.unpack_from(
                "<III", self._data, position + 12 + entry * 12
            )
            # If kind_flag is set, the upper byte is the size of the bit field.
            yield name_off, type_id, bits & 0xFFFFFF if info >> 31 else bits

    def _resolve(self, type_id: int) -> int:
        _, info, target = self._header(self._types[type_id])
        while info >> 24 & 0x1F in _MODIFIERS:
            type_id = target
            _, info, target = self._header(self._types[type_id])
        return type_id

    def _header(self, position: int) -> tuple[int, int, int]:
        name_off, info, size = struct.unpack_from("<III", self._data, position)
        return name_off, info, size

    def _string(self, offset: int) -> str:
        return self._strings[offset : self._strings.index(b"\0", offset)].decode()


def ancestor_offsets(btf: Btf) -> dict[str, int]:
    """Return the -D values of ``bpf/include/ancestors.h``.

    :raises BtfError: this kernel's struct cgroup does not list the ancestors.
    """
    defines = {
        "OFF_CGROUP_LEVEL": btf.offset("cgroup", "level"),
        "OFF_CGROUP_KN": btf.offset("cgroup", "kn"),
        "OFF_KERNFS_ID": btf.offset("kernfs_node", "id"),
    }
    try:
        return defines | {
            "ANCESTOR_IDS": 0,
            "OFF_CGROUP_ANCESTORS": btf.offset("cgroup", "ancestors"),
        }
    except BtfError:
        # Until Linux kernel commit 7f203bc89eb6 ("cgroup: Replace cgroup->ancestor_ids[] with
        # ->ancestors[]") (in v6.1).
        return defines | {
            "ANCESTOR_IDS": 1,
            "OFF_CGROUP_ANCESTORS": btf.offset("cgroup", "ancestor_ids"),
        }
