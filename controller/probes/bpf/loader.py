# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles and attaches a BPF program in a short-lived child and keeps only its descriptors.

bcc maps LLVM into its process and never returns the memory (some 110 MiB). So a child process
runs bcc, or takes the compiled program from the cache, loads it through libbpf, sends the
descriptors of maps and links over a unix socket and exits. Programs stay attached as long as these
descriptors are open, and only the agent holds them. This module is the parent's side and, run as
``python -m controller.probes.bpf.loader``, the child.
"""

from collections.abc import Mapping
import ctypes
from dataclasses import asdict, dataclass, field
import json
import logging
import os
from pathlib import Path
import re
import socket
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

from controller.host.facts import die_with_parent
from controller.host.package_data import bpf_dir
from controller.probes.bpf.compiled import (
    Compiled,
    Maps,
    ProgramType,
    attach_tracepoint,
    load_program,
)
from controller.probes.bpf.libbpf import libbpf
from controller.probes.bpf.program_cache import ProgramCache, cache_key

__all__ = ("LoadError", "Loaded", "ProgramSpec", "load", "use_cache")

_log = logging.getLogger(__name__)

_TIMEOUT_S = 60.0
_MAX_FDS = 64
_RAW_TRACEPOINT = "raw_tracepoint__"  # what RAW_TRACEPOINT_PROBE puts before the name
_cache: Path | None = None


class LoadError(Exception):
    """The program could not be compiled, verified or attached; the message gives the cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSpec:
    """What to load: a file of ``bpf/``, its ``-D`` values and the names of maps to return.

    Functions declared with RAW_TRACEPOINT_PROBE are attached on load.

    ``tracepoint`` is one more function, named like its tracepoint. The function and its tail calls
    are loaded with typed arguments (``-DTYPED=1``) or, if the kernel refuses that or ``typed`` is
    false, as plain raw tracepoints (``-DTYPED=0``).

    ``tail_calls`` names the functions of each program array. The array must be among ``maps``,
    because the kernel empties it when user space closes its last descriptor.

    ``cgroup_skb`` maps functions to their enum bpf_attach_type; they are attached at the directory
    ``cgroup`` and leave programs of others there in place.

    ``classifiers`` are functions for traffic control, ``runnable`` ones of the raw tracepoint
    type; both are loaded and not attached.
    """

    source: str
    defines: Mapping[str, int]
    maps: tuple[str, ...]
    tracepoint: str | None = None
    tail_calls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    typed: bool = True
    cgroup_skb: Mapping[str, int] = field(default_factory=dict)
    cgroup: str = ""
    classifiers: tuple[str, ...] = ()
    runnable: tuple[str, ...] = ()


@dataclass(slots=True)
class Loaded:
    """Descriptors of a loaded program; closing them detaches and frees it.

    ``untyped`` is the reason why the tracepoint has no typed arguments, and empty if it has.
    ``program_fds`` are the programs that are not attached, by name.
    """

    map_fds: dict[str, int]
    link_fds: list[int]
    untyped: str = ""
    program_fds: dict[str, int] = field(default_factory=dict)

    def close(self) -> None:
        """Detach the program and free its maps; may be called more than once."""
        for fd in (*self.link_fds, *self.map_fds.values(), *self.program_fds.values()):
            os.close(fd)
        self.link_fds.clear()
        self.map_fds.clear()
        self.program_fds.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def use_cache(directory: Path) -> None:
    """Keep compiled programs in *directory* from now on; only root may write there."""
    global _cache
    _cache = directory


def load(spec: ProgramSpec) -> Loaded:
    """Load *spec* through a child process and return its descriptors.

    :raises LoadError: bcc is missing, the program does not compile, the kernel refuses it, or
        the child does not answer within 60 s.
    """
    request = json.dumps({**asdict(spec), "cache": None if _cache is None else str(_cache)})
    channel, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with channel, child_end:
        channel.settimeout(_TIMEOUT_S)
        child = subprocess.Popen(
            [sys.executable, "-m", "controller.probes.bpf.loader", str(child_end.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(child_end.fileno(),),
            env={**os.environ, "BCC_KERNEL_SOURCE": str(bpf_dir() / "include" / "kernel")},
        )
        child_end.close()
        try:
            _, errors = child.communicate(request.encode(), _TIMEOUT_S)
            message, fds, _, _ = socket.recv_fds(channel, 65536, _MAX_FDS)
        except (subprocess.TimeoutExpired, TimeoutError):
            child.kill()
            child.communicate()
            raise LoadError(f"{spec.source}: no answer of the loader within 60 s") from None
    for fd in fds:
        os.set_inheritable(fd, False)
    answer: dict[str, Any] = (
        json.loads(message) if message else {"error": _last_line(errors), "maps": []}
    )
    if "error" in answer:
        raise LoadError(f"{spec.source}: {_explain(answer['error'], errors)}")
    for problem in answer["problems"]:
        _log.warning("%s: %s", spec.source, problem)
    names: list[str] = answer["maps"]
    untyped: str = answer["untyped"]
    if spec.tracepoint is not None:
        _log.debug("%s: %s", spec.source, f"untyped, {untyped}" if untyped else "typed")
    maps = dict(zip(names, fds, strict=False))
    unattached = (*spec.classifiers, *spec.runnable)
    programs = dict(zip(unattached, fds[len(names) :], strict=False))
    return Loaded(maps, list(fds[len(maps) + len(programs) :]), untyped, programs)


def _explain(error: str, errors: bytes) -> str:
    """Append up to three lines of bcc's stderr to its exception, which rarely has the cause."""
    text = errors.decode(errors="replace")
    causes = [
        line
        for line in text.splitlines()
        if "error:" in line or "bpf: Failed" in line or "not permitted" in line.lower()
    ]
    return "; ".join([error, *causes[:3]])


def _last_line(errors: bytes) -> str:
    lines = errors.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "the loader ended without a message"


def _child(channel: socket.socket) -> None:
    die_with_parent()
    spec = json.load(sys.stdin)
    cache = None if spec["cache"] is None else ProgramCache(Path(spec["cache"]))
    try:
        untyped, fds = _load(spec, cache)
    except Exception as err:  # bcc raises nothing more specific than Exception
        channel.send(json.dumps({"error": str(err)[:1000]}).encode())
    else:
        problems = [] if cache is None else cache.problems
        answer = {"maps": spec["maps"], "untyped": untyped[:1000], "problems": problems}
        socket.send_fds(channel, [json.dumps(answer).encode()], fds)
    sys.stderr.flush()
    os._exit(0)  # skips bcc's clean-up at exit, which would detach the programs


def _load(spec: dict[str, Any], cache: ProgramCache | None) -> tuple[str, list[int]]:
    """Load the typed variant, or else the plain one: (why not typed, descriptors)."""
    if not spec["typed"]:
        return "not requested", _load_variant(spec, cache, typed=False)
    try:
        return "", _load_variant(spec, cache, typed=True)
    except OSError as err:
        return str(err), _load_variant(spec, cache, typed=False)


def _load_variant(spec: dict[str, Any], cache: ProgramCache | None, *, typed: bool) -> list[int]:
    compiled = _compiled(spec, cache, typed=typed)
    maps = Maps(compiled)
    tracepoint: str | None = spec["tracepoint"]

    def load_function(name: str, kind: int = ProgramType.RAW_TRACEPOINT, attach: int = 0) -> int:
        if name not in compiled.functions:
            raise LoadError(f"no function {name}")
        return load_program(kind, name, maps.code(name), attach_type=attach)

    def load_traced(name: str) -> int:
        if typed and tracepoint is not None:
            return load_program(ProgramType.TRACING, name, maps.code(name), typed_for=tracepoint)
        return load_function(name)

    for array, functions in spec["tail_calls"].items():
        for index, name in enumerate(functions):
            maps.set_tail_call(array, index, load_traced(name))
    links: list[int] = []
    if tracepoint is not None:
        program = load_traced(tracepoint)
        links.append(attach_tracepoint(program, None if typed else tracepoint))
    links += [
        attach_tracepoint(load_function(name), name.removeprefix(_RAW_TRACEPOINT))
        for name in compiled.functions
        if name.startswith(_RAW_TRACEPOINT)
    ]
    for name, attach_type in spec["cgroup_skb"].items():
        function = load_function(name, ProgramType.CGROUP_SKB, attach_type)
        links.append(_link_to_cgroup(function, spec["cgroup"], attach_type))
    programs = [load_function(name, ProgramType.SCHED_CLS) for name in spec["classifiers"]]
    programs += [load_function(name) for name in spec["runnable"]]
    return [*(maps.fds[name] for name in spec["maps"]), *programs, *links]


def _compiled(spec: dict[str, Any], cache: ProgramCache | None, *, typed: bool) -> Compiled:
    source = _source(bpf_dir(), spec["source"])
    defines: dict[str, int] = {**spec["defines"], "TYPED": int(typed)}
    if cache is None:
        return _compile(source, defines)
    key = cache_key(source, Path(os.environ["BCC_KERNEL_SOURCE"]), defines)
    compiled = cache.get(key)
    if compiled is None:
        compiled = _compile(source, defines)
        cache.put(key, compiled)
    return compiled


def _compile(source: str, defines: Mapping[str, int]) -> Compiled:
    try:
        from bcc import BPF, lib
    except ImportError as err:
        raise LoadError(
            "the Python module bcc is missing: install python3-bpfcc and link it into the "
            "virtual environment (`make` does both)"
        ) from err
    if not hasattr(BPF, "attach_raw_tracepoint"):
        raise LoadError("the module bcc is not the BPF Compiler Collection: install python3-bpfcc")
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
    compiled = Compiled.of(maps, {name: program.dump_func(name) for name in names})
    program.cleanup()  # its maps, and the programs that it has attached by their names
    return compiled


def _link_to_cgroup(program: int, cgroup: str, attach_type: int) -> int:
    """Attach by a BPF link (Linux 5.7) and return its descriptor, whose closing detaches.

    Not with bcc's attach_func: that replaces attached programs and outlives the process.
    """
    target = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    link: int = libbpf().bpf_link_create(program, target, attach_type, None)
    os.close(target)
    if link < 0:  # libbpf returns the negative errno
        raise OSError(-link, f"cannot attach to {cgroup}: {os.strerror(-link)}")
    return link


def _source(folder: Path, name: str) -> str:
    """Return a program with its headers inlined: bcc rewrites map methods in the main text only."""

    def header(match: re.Match[str]) -> str:
        return (folder / "include" / match[1]).read_text().replace("#pragma once\n", "")

    return re.sub(r'^#include "(\w+\.h)"$', header, (folder / name).read_text(), flags=re.M)


if __name__ == "__main__":
    _child(socket.socket(fileno=int(sys.argv[1])))
