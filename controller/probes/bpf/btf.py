# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Struct offsets of the running kernel, read from its BTF.

The probes are compiled without kernel headers: every offset they use is looked up here and passed
to the compiler. A member that this kernel does not have is then a named error at start, whereas
headers of another kernel would give wrong numbers without an error. libbpf indexes the 130,000
types of a kernel in 10 ms; structs and their members are decoded here
(Documentation/bpf/btf.rst), because libbpf offers that to C programs only, as inline functions.
"""

from collections.abc import Iterator
import ctypes
import os
from pathlib import Path
import struct
import weakref

from controller.probes.bpf.libbpf import libbpf

__all__ = ("VMLINUX_BTF", "Btf", "BtfError", "ancestor_offsets")

VMLINUX_BTF = Path("/sys/kernel/btf/vmlinux")
_KIND_STRUCT = 4
_KIND_UNION = 5
_MODIFIERS = (8, 9, 10, 11, 18)  # typedef, volatile, const, restrict, type tag
_TYPE = struct.Struct("=III")  # struct btf_type: name, info, size or type
_MEMBER = struct.Struct("=III")  # struct btf_member: name, type, offset


class BtfError(Exception):
    """There is no usable BTF, or this kernel does not have a struct or member."""


class Btf:
    """The type information of one kernel.

    :param path: the raw BTF blob.
    :raises BtfError: the file is missing, unreadable or not BTF of this byte order, or libbpf is
        missing.
    """

    def __init__(self, path: Path = VMLINUX_BTF) -> None:
        if not path.exists():
            raise BtfError(
                f"{path} is missing; the kernel must be built with CONFIG_DEBUG_INFO_BTF"
            )
        try:
            self._library = libbpf()
        except OSError as error:
            raise BtfError(f"{error}; install python3-bpfcc, which brings it") from None
        self._handle = self._library.btf__parse_raw(os.fsencode(path))
        if not self._handle:
            raise BtfError(
                f"{path}: {os.strerror(ctypes.get_errno())}; it is not the BTF of a kernel "
                "(CONFIG_DEBUG_INFO_BTF) that this version of libbpf can read"
            )
        weakref.finalize(self, self._library.btf__free, self._handle)

    def offset(self, struct_name: str, path: str) -> int:
        """Return the offset in bytes of member *path* (dots descend) of ``struct struct_name``.

        :raises BtfError: the struct or the member does not exist, or the member is a bit field.
        """
        bits, type_id = 0, self._struct(struct_name)
        for name in path.split("."):
            found = self._member(type_id, name)
            if found is None:
                raise BtfError(f"this kernel's struct {struct_name} has no member {path}")
            bits += found[0]
            type_id = found[1]
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

    def _struct(self, name: str) -> int:
        type_id: int = self._library.btf__find_by_name_kind(
            self._handle, name.encode(), _KIND_STRUCT
        )
        if type_id < 0:
            raise BtfError(f"this kernel has no struct {name}")
        return type_id

    def _member(self, type_id: int, name: str) -> tuple[int, int] | None:
        """Return (offset in bits, type) of *name*, also in anonymous members; else ``None``."""
        for member_name, member_type, bits in self._members(type_id):
            if member_name == name:
                return bits, member_type
            if not member_name:
                inner = self._member(member_type, name)
                if inner is not None:
                    return bits + inner[0], inner[1]
        return None

    def _members(self, type_id: int) -> Iterator[tuple[str, int, int]]:
        address, (_, info, target) = self._type(type_id)
        while info >> 24 & 0x1F in _MODIFIERS:
            address, (_, info, target) = self._type(target)
        if info >> 24 & 0x1F not in (_KIND_STRUCT, _KIND_UNION):
            return
        members = ctypes.string_at(address + _TYPE.size, (info & 0xFFFF) * _MEMBER.size)
        for name, member_type, bits in _MEMBER.iter_unpack(members):
            # If kind_flag is set, the upper byte is the size of the bit field.
            yield self._string(name), member_type, bits & 0xFFFFFF if info >> 31 else bits

    def _type(self, type_id: int) -> tuple[int, tuple[int, int, int]]:
        address: int = self._library.btf__type_by_id(self._handle, type_id)
        name, info, target = _TYPE.unpack(ctypes.string_at(address, _TYPE.size))
        return address, (name, info, target)

    def _string(self, offset: int) -> str:
        text: bytes = self._library.btf__name_by_offset(self._handle, offset)
        return text.decode()


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
