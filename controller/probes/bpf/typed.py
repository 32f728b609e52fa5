# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Loads bytecode as a raw tracepoint program with typed arguments, which bcc cannot.

Such a program (BPF_PROG_TYPE_TRACING for BPF_TRACE_RAW_TP) may follow the kernel's pointers with
plain loads; see ``bpf/include/typed.h``. libbpf looks the tracepoint up in the kernel's BTF.
"""

import ctypes
import os

__all__ = ("attach_typed", "load_typed")

_BPF_PROG_TYPE_TRACING = 26
_BPF_TRACE_RAW_TP = 23
_LOG_BYTES = 1 << 16


class _LoadOptions(ctypes.Structure):
    """The beginning of libbpf's ``struct bpf_prog_load_opts``; ``sz`` says how much of it."""

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

    :param code: instructions with the descriptors of their maps in them.
    :raises OSError: libbpf is missing, the kernel does not describe the tracepoint, or it
        refuses the program: then with the verifier's last words.
    """
    libbpf = ctypes.CDLL("libbpf.so.1", use_errno=True)
    log = ctypes.create_string_buffer(_LOG_BYTES)
    type_id = libbpf.libbpf_find_vmlinux_btf_id(tracepoint.encode(), _BPF_TRACE_RAW_TP)
    if type_id <= 0:
        raise OSError(-type_id, f"{tracepoint} in the kernel's BTF: {os.strerror(-type_id)}")
    options = _LoadOptions(
        sz=ctypes.sizeof(_LoadOptions),
        expected_attach_type=_BPF_TRACE_RAW_TP,
        attach_btf_id=type_id,
        log_size=_LOG_BYTES,
        log_buf=ctypes.addressof(log),
    )
    program: int = libbpf.bpf_prog_load(
        _BPF_PROG_TYPE_TRACING,
        name.encode(),
        b"GPL",
        code,
        ctypes.c_size_t(len(code) // 8),
        ctypes.byref(options),
    )
    if program < 0:
        words = log.value.decode(errors="replace").strip().splitlines()
        raise OSError(-program, "; ".join([f"{name}: {os.strerror(-program)}", *words[-2:]]))
    return program


def attach_typed(program: int) -> int:
    """Attach *program* to the tracepoint that it was loaded for and return the link.

    :raises OSError: the kernel refuses.
    """
    libbpf = ctypes.CDLL("libbpf.so.1", use_errno=True)
    link: int = libbpf.bpf_raw_tracepoint_open(None, program)
    if link < 0:
        raise OSError(-link, f"attach: {os.strerror(-link)}")
    return link
