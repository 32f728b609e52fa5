# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles a BPF source with bcc, in a child process that ends with it.

bcc maps LLVM into its process and never returns the memory (some 110 MiB). This module is the
parent's side and, run as a program, the child, which answers
with the compiled program as JSON.
"""

from collections.abc import Mapping
import ctypes
import json
import os
import subprocess
import sys
from typing import Any

from controller.host.facts import die_with_parent
from controller.host.package_data import bpf_dir
from controller.host.python_child import python_child
from controller.probes.bpf.compiled import Compiled

__all__ = ("CompileError", "compile_source")

_TIMEOUT_S = 60.0


class CompileError(Exception):
    """bcc is missing or cannot compile the source; the message gives the cause."""


def compile_source(source: str, defines: Mapping[str, int]) -> Compiled:
    """Return the compiled *source*; *defines* are its ``-D`` values.

    :raises CompileError: see there; also, the child does not answer within 60 s.
    """
    child = subprocess.Popen(
        python_child("controller.probes.bpf.compiler"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "BCC_KERNEL_SOURCE": str(bpf_dir() / "include" / "kernel")},
    )
    request = json.dumps({"source": source, "defines": dict(defines)}).encode()
    try:
        output, errors = child.communicate(request, _TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        raise CompileError("no answer of the compiler within 60 s") from None
    answer: dict[str, Any] = json.loads(output) if output else {"error": _last_line(errors)}
    if "error" in answer:
        raise CompileError(_explain(answer["error"], errors))
    return Compiled.from_json(answer)


def _explain(error: str, errors: bytes) -> str:
    """Append up to three lines of bcc's stderr to its exception, which rarely has the cause."""
    text = errors.decode(errors="replace")
    causes = [line for line in text.splitlines() if "error:" in line]
    return "; ".join([error, *causes[:3]])


def _last_line(errors: bytes) -> str:
    lines = errors.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "the compiler ended without a message"


def _child() -> None:
    die_with_parent()
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # what bcc prints must not get into the answer
    request = json.load(sys.stdin)
    try:
        answer = _compile(request["source"], request["defines"]).to_json()
    except Exception as err:  # bcc raises nothing more specific than Exception
        answer = {"error": str(err)[:1000]}
    with os.fdopen(answer_fd, "w", encoding="utf-8") as file:
        json.dump(answer, file)
    os._exit(0)  # without the destructors of LLVM; the kernel frees what bcc loaded and attached


def _compile(source: str, defines: Mapping[str, int]) -> Compiled:
    try:
        from bcc import BPF, lib
    except ModuleNotFoundError as err:
        raise CompileError(
            f"the Python module {err.name} is missing: install python3-bpfcc and link it into the "
            "virtual environment (`make` does both)"
        ) from err
    except (ImportError, OSError) as err:  # of another Python, or without its library libbcc
        raise CompileError(
            f"the Python module bcc cannot be loaded ({err}): install python3-bpfcc again, for "
            "this Python"
        ) from err
    if not hasattr(BPF, "attach_raw_tracepoint"):
        raise CompileError(
            "the module bcc is not the BPF Compiler Collection: install python3-bpfcc"
        )
    program = BPF(text=source, cflags=[f"-D{name}={value}" for name, value in defines.items()])
    lib.bpf_table_name.restype = ctypes.c_char_p
    lib.bpf_num_tables.restype = ctypes.c_size_t
    lib.bpf_num_tables.argtypes = (ctypes.c_void_p,)
    for function in (lib.bpf_table_name, lib.bpf_table_fd_id):
        function.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    module = program.module
    maps = {
        lib.bpf_table_name(module, number).decode(): lib.bpf_table_fd_id(module, number)
        for number in range(lib.bpf_num_tables(module))
    }
    names = [
        lib.bpf_function_name(module, number).decode()
        for number in range(lib.bpf_num_functions(module))
    ]
    return Compiled.of(maps, {name: program.dump_func(name) for name in names})


if __name__ == "__main__":
    _child()
