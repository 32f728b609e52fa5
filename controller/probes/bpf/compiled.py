# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Compiled BPF programs as data, and their loading through libbpf.

bcc compiles and creates the maps in one step, so that its instructions hold the descriptors of
these maps. Here each such instruction names its map instead, and the maps are created from their
attributes: what was compiled once can be loaded at any time, without bcc. bcc cannot load programs
of type BPF_PROG_TYPE_TRACING for BPF_TRACE_RAW_TP in any case; those may follow the kernel's
pointers with plain loads, see ``bpf/include/typed.h``.
"""

from collections.abc import Mapping
import ctypes
from dataclasses import dataclass
from functools import cache
import os
from pathlib import Path
import struct
from typing import Any, NamedTuple, Self

from controller.probes.bpf.libbpf import libbpf

__all__ = (
    "Compiled",
    "MapSpec",
    "Maps",
    "ProgramType",
    "attach_tracepoint",
    "create_map",
    "load_program",
)

_INSTRUCTION = struct.Struct("=BBhi")  # struct bpf_insn: opcode, registers, offset, immediate
_LOAD_64 = 0x18  # BPF_LD | BPF_IMM | BPF_DW, which takes two instructions
_MAP_FD = 1  # BPF_PSEUDO_MAP_FD in the source register
_LOG_BYTES = 1 << 16
_TRACE_RAW_TP = 23  # BPF_TRACE_RAW_TP


class ProgramType:
    """Values of enum bpf_prog_type."""

    SCHED_CLS = 3
    CGROUP_SKB = 8
    RAW_TRACEPOINT = 17
    TRACING = 26


class MapSpec(NamedTuple):
    """Attributes of a map, as in union bpf_attr."""

    type: int
    key_size: int
    value_size: int
    max_entries: int
    flags: int

    @classmethod
    def of(cls, fd: int) -> Self:
        """Return the attributes of the map with the descriptor *fd*."""
        lines = Path(f"/proc/self/fdinfo/{fd}").read_text(encoding="ascii").splitlines()
        found = dict(line.split(":", 1) for line in lines)
        names = ("map_type", "key_size", "value_size", "max_entries", "map_flags")
        return cls(*(int(found[name], 0) for name in names))


@dataclass(frozen=True, slots=True)
class Compiled:
    """One compiled source: its maps, and the instructions of each function.

    ``references``: by function, which map each instruction refers to, by the instruction's number.
    """

    maps: Mapping[str, MapSpec]
    functions: Mapping[str, bytes]
    references: Mapping[str, Mapping[int, str]]

    @classmethod
    def of(cls, maps: Mapping[str, int], functions: Mapping[str, bytes]) -> Self:
        """Return what bcc compiled.

        :param maps: descriptors of its maps by name.
        :param functions: instructions with these descriptors.
        :raises ValueError: an instruction refers to anything else.
        """
        names = {fd: name for name, fd in maps.items()}
        references = {
            function: {at: names[fd] for at, fd in _map_fds(code)}
            for function, code in functions.items()
        }
        return cls({name: MapSpec.of(fd) for name, fd in maps.items()}, functions, references)

    def to_json(self) -> dict[str, Any]:
        return {
            "maps": self.maps,
            "functions": {name: code.hex() for name, code in self.functions.items()},
            "references": self.references,
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return what ``to_json`` gave, after a round trip through JSON.

        :raises (KeyError, TypeError, ValueError, AttributeError): *value* is something else.
        """
        return cls(
            {str(name): MapSpec(*map(int, spec)) for name, spec in value["maps"].items()},
            {str(name): bytes.fromhex(code) for name, code in value["functions"].items()},
            {
                str(name): {int(at): str(target) for at, target in found.items()}
                for name, found in value["references"].items()
            },
        )


class _MapOptions(ctypes.Structure):
    """The first members of libbpf's ``struct bpf_map_create_opts``; ``sz`` is the size given."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("btf_fd", ctypes.c_uint32),
        ("btf_key_type_id", ctypes.c_uint32),
        ("btf_value_type_id", ctypes.c_uint32),
        ("btf_vmlinux_value_type_id", ctypes.c_uint32),
        ("inner_map_fd", ctypes.c_uint32),
        ("map_flags", ctypes.c_uint32),
        ("map_extra", ctypes.c_uint64),
    )


class Maps:
    """The maps of *compiled* in the kernel; ``fds`` are their descriptors by name."""

    def __init__(self, compiled: Compiled, fds: Mapping[str, int]) -> None:
        self._compiled = compiled
        self.fds = fds

    def code(self, function: str) -> bytes:
        """Return the instructions of *function* with the descriptors of these maps.

        :raises KeyError: there is no such function.
        """
        code = bytearray(self._compiled.functions[function])
        for at, name in self._compiled.references[function].items():
            start = at * _INSTRUCTION.size
            opcode, registers, offset, _ = _INSTRUCTION.unpack_from(code, start)
            _INSTRUCTION.pack_into(code, start, opcode, registers, offset, self.fds[name])
        return bytes(code)

    def set_tail_call(self, array: str, index: int, program: int) -> None:
        """Put *program* into the program array *array*, which keeps it loaded."""
        fd = ctypes.byref(ctypes.c_uint32(program))
        key = ctypes.byref(ctypes.c_uint32(index))
        if libbpf().bpf_map_update_elem(self.fds[array], key, fd, ctypes.c_uint64(0)):
            error = ctypes.get_errno()
            raise OSError(error, f"{array}: {os.strerror(error)}")


class _LoadOptions(ctypes.Structure):
    """The first members of libbpf's ``struct bpf_prog_load_opts``; ``sz`` is the size given."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("attempts", ctypes.c_int),
        ("expected_attach_type", ctypes.c_uint32),
        ("prog_btf_fd", ctypes.c_uint32),
        ("prog_flags", ctypes.c_uint32),
        ("prog_ifindex", ctypes.c_uint32),
        ("kern_version", ctypes.c_uint32),
        ("attach_btf_id", ctypes.c_uint32),
        ("attach_prog_fd", ctypes.c_uint32),
        ("attach_btf_obj_fd", ctypes.c_uint32),
        ("fd_array", ctypes.c_void_p),
        ("func_info", ctypes.c_void_p),
        ("func_info_cnt", ctypes.c_uint32),
        ("func_info_rec_size", ctypes.c_uint32),
        ("line_info", ctypes.c_void_p),
        ("line_info_cnt", ctypes.c_uint32),
        ("line_info_rec_size", ctypes.c_uint32),
        ("log_level", ctypes.c_uint32),
        ("log_size", ctypes.c_uint32),
        ("log_buf", ctypes.c_void_p),
    )


def load_program(
    program_type: int, name: str, code: bytes, *, attach_type: int = 0, typed_for: str | None = None
) -> int:
    """Load *code* and return the program's descriptor.

    :param code: instructions that hold the descriptors of their maps.
    :param attach_type: an enum bpf_attach_type, for the program types that need one.
    :param typed_for: the tracepoint whose arguments have types, for ``ProgramType.TRACING``.
    :raises OSError: libbpf is missing, the kernel's BTF does not have the tracepoint, or the
        kernel refuses the program; then the message ends with the verifier's last two lines.
    """
    library = libbpf()
    log = ctypes.create_string_buffer(_LOG_BYTES)
    options = _LoadOptions(
        sz=ctypes.sizeof(_LoadOptions),
        expected_attach_type=attach_type,
        log_size=_LOG_BYTES,
        log_buf=ctypes.addressof(log),
    )
    if typed_for is not None:
        options.attach_btf_id = _tracepoint_type(typed_for)
        options.expected_attach_type = _TRACE_RAW_TP
    program: int = library.bpf_prog_load(
        program_type,
        name.encode(),
        b"GPL",
        code,
        ctypes.c_size_t(len(code) // _INSTRUCTION.size),
        ctypes.byref(options),
    )
    if program < 0:
        last_lines = log.value.decode(errors="replace").strip().splitlines()[-2:]
        raise OSError(-program, "; ".join([f"{name}: {os.strerror(-program)}", *last_lines]))
    return program


@cache
def _tracepoint_type(tracepoint: str) -> int:
    # Kept, because libbpf indexes the kernel's types anew in each call, which takes 8 ms.
    type_id: int = libbpf().libbpf_find_vmlinux_btf_id(tracepoint.encode(), _TRACE_RAW_TP)
    if type_id <= 0:
        raise OSError(-type_id, f"{tracepoint} in the kernel's BTF: {os.strerror(-type_id)}")
    return type_id


def attach_tracepoint(program: int, tracepoint: str | None) -> int:
    """Attach *program* and return the descriptor of the link.

    :param tracepoint: ``None`` for a typed program: the one it was loaded for.
    :raises OSError: the kernel refuses.
    """
    name = None if tracepoint is None else tracepoint.encode()
    link: int = libbpf().bpf_raw_tracepoint_open(name, program)
    if link < 0:
        raise OSError(-link, f"attach {tracepoint or ''}: {os.strerror(-link)}")
    return link


def create_map(name: str, spec: MapSpec) -> int:
    """Create a map with the attributes *spec* and return its descriptor.

    :raises OSError: libbpf is missing, or the kernel refuses.
    """
    options = _MapOptions(sz=ctypes.sizeof(_MapOptions), map_flags=spec.flags)
    fd: int = libbpf().bpf_map_create(
        spec.type,
        name.encode(),
        spec.key_size,
        spec.value_size,
        ctypes.c_uint32(spec.max_entries),
        ctypes.byref(options),
    )
    if fd < 0:
        raise OSError(-fd, f"map {name}: {os.strerror(-fd)}")
    return fd


def _map_fds(code: bytes) -> list[tuple[int, int]]:
    # (number of the instruction, descriptor of its map)
    found = []
    wide = False
    for at, (opcode, registers, _, immediate) in enumerate(_INSTRUCTION.iter_unpack(code)):
        if wide:  # the upper half of the value
            wide = False
        elif opcode == _LOAD_64:
            wide = True
            source = registers >> 4
            if source == _MAP_FD:
                found.append((at, immediate))
            elif source:
                raise ValueError(f"instruction {at} refers to an unknown kind of object ({source})")
    return found
