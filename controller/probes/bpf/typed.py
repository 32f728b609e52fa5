# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Loading of raw tracepoint programs with typed arguments, which bcc does not support.

A program of type BPF_PROG_TYPE_TRACING for BPF_TRACE_RAW_TP may follow the kernel's pointers with
plain loads; see ``bpf/include/typed.h``. libbpf finds the tracepoint in the kernel's BTF.
"""

import ctypes
import os

from controller.probes.bpf.libbpf import libbpf

__all__ = ("attach_typed", "load_typed")

_BPF_PROG_TYPE_TRACING = 26
_BPF_TRACE_RAW_TP = 23
_LOG_BYTES = 1 << 16


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


def load_typed(tracepoint: str, name: str, code: bytes) -> int:
    """Load *code* for *tracepoint* and return the program's descriptor.

    :param code: instructions that already hold the descriptors of their maps.
    :raises OSError: libbpf is missing, the kernel's BTF does not have the tracepoint, or the
        kernel refuses the program; then the message ends with the verifier's last two lines.
    """
    library = libbpf()
    log = ctypes.create_string_buffer(_LOG_BYTES)
    type_id = library.libbpf_find_vmlinux_btf_id(tracepoint.encode(), _BPF_TRACE_RAW_TP)
    if type_id <= 0:
        raise OSError(-type_id, f"{tracepoint} in the kernel's BTF: {os.strerror(-type_id)}")
    options = _LoadOptions(
        sz=ctypes.sizeof(_LoadOptions),
        expected_attach_type=_BPF_TRACE_RAW_TP,
        attach_btf_id=type_id,
        log_size=_LOG_BYTES,
        log_buf=ctypes.addressof(log),
    )
    program: int = library.bpf_prog_load(
        _BPF_PROG_TYPE_TRACING,
        name.encode(),
        b"GPL",
        code,
        ctypes.c_size_t(len(code) // 8),
        ctypes.byref(options),
    )
    if program < 0:
        last_lines = log.value.decode(errors="replace").strip().splitlines()[-2:]
        raise OSError(-program, "; ".join([f"{name}: {os.strerror(-program)}", *last_lines]))
    return program


def attach_typed(program: int) -> int:
    """Attach *program* to the tracepoint it was loaded for and return the descriptor of the link.

    :raises OSError: the kernel refuses.
    """
    link: int = libbpf().bpf_raw_tracepoint_open(None, program)
    if link < 0:
        raise OSError(-link, f"attach: {os.strerror(-link)}")
    return link
