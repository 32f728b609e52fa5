# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Loads and attaches a BPF program, compiled now or by an earlier start.

Maps, programs and links are descriptors of this process: programs stay attached as long as these
are open. Everything is done here through libbpf; only a program that the cache does not have is
compiled, in a child (``compiler``), because that takes ten times as long and LLVM's memory.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
import errno
import logging
import os
from pathlib import Path
import re
from types import TracebackType
from typing import Self

from controller.host.package_data import bpf_dir
from controller.probes.bpf.compiled import (
    Compiled,
    Maps,
    ProgramType,
    attach_tracepoint,
    create_map,
    load_program,
)
from controller.probes.bpf.compiler import CompileError, compile_source
from controller.probes.bpf.libbpf import libbpf
from controller.probes.bpf.program_cache import ProgramCache, cache_key

__all__ = ("LoadError", "Loaded", "ProgramSpec", "load", "prepare", "use_cache")

_log = logging.getLogger(__name__)

_RAW_TRACEPOINT = "raw_tracepoint__"  # what RAW_TRACEPOINT_PROBE puts before the name
_MAX_REASON = 1000  # characters
# What the host refuses whatever the program is: rights, memory, descriptors, a tracepoint that it
# does not have, a cgroup with a foreign program.
_NOT_THE_PROGRAM = {
    errno.EPERM, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOENT, errno.EBUSY,
}  # fmt: skip
_cache: Path | None = None
# By source and -D values.
_prepared: "dict[tuple[str, str], _Program]" = {}


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

    @property
    def fds(self) -> tuple[int, ...]:
        """All descriptors, links first."""
        return (*self.link_fds, *self.map_fds.values(), *self.program_fds.values())

    def close(self) -> None:
        """Detach the program and free its maps; may be called more than once."""
        for fd in self.fds:
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
    """Load *spec* and return its descriptors.

    :raises LoadError: bcc or libbpf is missing, the program does not compile, or the kernel
        refuses it.
    """
    try:
        loaded = _load(spec)
    except (CompileError, OSError) as error:
        raise LoadError(f"{spec.source}: {str(error)[:_MAX_REASON]}") from error
    if spec.tracepoint is not None:
        untyped = loaded.untyped
        _log.debug("%s: %s", spec.source, f"untyped, {untyped}" if untyped else "typed")
    return loaded


def prepare(spec: ProgramSpec) -> None:
    """Compile *spec* now and keep the result in memory for a later ``load``, which is fast then.

    :raises LoadError: bcc is missing, or the program does not compile.
    """
    try:
        _find(spec, typed=spec.typed, keep=True)
    except (CompileError, OSError) as error:
        raise LoadError(f"{spec.source}: {str(error)[:_MAX_REASON]}") from error


def _load(spec: ProgramSpec) -> Loaded:
    """Load the typed variant, or else the plain one."""
    if not spec.typed:
        return _load_variant(spec, typed=False, untyped="not requested")
    try:
        return _load_variant(spec, typed=True, untyped="")
    except OSError as error:
        return _load_variant(spec, typed=False, untyped=str(error)[:_MAX_REASON])


def _load_variant(spec: ProgramSpec, *, typed: bool, untyped: str) -> Loaded:
    program = _find(spec, typed=typed)
    while True:
        try:
            loaded = _load_compiled(spec, program.compiled, typed)
        except (OSError, LoadError, KeyError) as error:
            if not program.renew(error):
                raise
        else:
            loaded.untyped = untyped
            return loaded


def _load_compiled(spec: ProgramSpec, compiled: Compiled, typed: bool) -> Loaded:
    opened: list[int] = []
    loaded: Loaded | None = None
    try:
        loaded = _Loading(spec, compiled, typed, opened).load()
        return loaded
    finally:
        # After an error all; else those that a link or a map keeps loaded.
        for fd in set(opened).difference(() if loaded is None else loaded.fds):
            os.close(fd)


class _Loading:
    """One variant of *spec* on its way into the kernel; all descriptors are added to *opened*."""

    def __init__(
        self, spec: ProgramSpec, compiled: Compiled, typed: bool, opened: list[int]
    ) -> None:
        self._spec = spec
        self._compiled = compiled
        self._typed = typed
        self._opened = opened
        fds = {name: self._open(create_map(name, each)) for name, each in compiled.maps.items()}
        self._maps = Maps(compiled, fds)

    def load(self) -> Loaded:
        spec = self._spec
        for array, functions in spec.tail_calls.items():
            for index, name in enumerate(functions):
                self._maps.set_tail_call(array, index, self._load_traced(name))
        programs = {n: self._load_function(n, ProgramType.SCHED_CLS) for n in spec.classifiers}
        programs |= {name: self._load_function(name) for name in spec.runnable}
        return Loaded(
            map_fds={name: self._maps.fds[name] for name in spec.maps},
            link_fds=list(self._attach()),
            program_fds=programs,
        )

    def _attach(self) -> Iterator[int]:
        spec = self._spec
        if spec.tracepoint is not None:
            program = self._load_traced(spec.tracepoint)
            name = None if self._typed else spec.tracepoint
            yield self._open(attach_tracepoint(program, name))
        for name in self._compiled.functions:
            if name.startswith(_RAW_TRACEPOINT):
                program = self._load_function(name)
                yield self._open(attach_tracepoint(program, name.removeprefix(_RAW_TRACEPOINT)))
        for name, attach_type in spec.cgroup_skb.items():
            program = self._load_function(name, ProgramType.CGROUP_SKB, attach_type)
            yield self._open(_link_to_cgroup(program, spec.cgroup, attach_type))

    def _load_traced(self, name: str) -> int:
        if not self._typed or self._spec.tracepoint is None:
            return self._load_function(name)
        code, traced = self._code(name), self._spec.tracepoint
        return self._open(load_program(ProgramType.TRACING, name, code, typed_for=traced))

    def _load_function(
        self, name: str, kind: int = ProgramType.RAW_TRACEPOINT, attach_type: int = 0
    ) -> int:
        return self._open(load_program(kind, name, self._code(name), attach_type=attach_type))

    def _code(self, name: str) -> bytes:
        if name not in self._compiled.functions:
            raise LoadError(f"{self._spec.source}: no function {name}")
        return self._maps.code(name)

    def _open(self, fd: int) -> int:
        self._opened.append(fd)
        return fd


@dataclass(slots=True)
class _Program:
    """A compiled source, and how to compile it again if the kernel refuses what the cache had.

    ``cache`` and ``key``: where it is kept, if it is. ``is_old``: an earlier start compiled it, and
    compiling may bring another one. ``prepared``: a tick loads it, which waits for no compiler.
    """

    name: str
    source: str
    defines: Mapping[str, int]
    cache: ProgramCache | None
    key: str
    compiled: Compiled
    is_old: bool
    prepared: bool = False

    def renew(self, error: Exception) -> bool:
        """Replace what the kernel refused with *error*; return whether there is something new."""
        if self.cache is None or getattr(error, "errno", None) in _NOT_THE_PROGRAM:
            return False
        if not self.is_old:
            self.cache.note_refusal(self.key)
            return False
        self.is_old = False
        self.cache.drop(self.key)
        reason = str(error)[:_MAX_REASON]
        if self.prepared:
            _log.warning("%s: dropped from the cache, refused: %s", self.name, reason)
            self.cache = None
            return False
        _log.warning("%s: of the cache, refused, compiled again: %s", self.name, reason)
        try:
            self.compiled = compile_source(self.source, self.defines)
        except CompileError as failure:
            _log.warning("%s: %s", self.name, failure)
            return False
        self.cache.put(self.key, self.compiled)
        return True


def _find(spec: ProgramSpec, *, typed: bool, keep: bool = False) -> _Program:
    """Return *spec* from memory, from the cache, or compiled now; *keep* it in memory."""
    folder = bpf_dir()
    source = _source(folder, spec.source)
    defines = {**spec.defines, "TYPED": int(typed)}
    place = source, repr(sorted(defines.items()))
    program = _prepared.get(place)
    if program is None:
        program = _from_cache(spec.source, folder, source, defines)
    if keep:
        program.prepared = True
        _prepared[place] = program
    return program


def _from_cache(name: str, folder: Path, source: str, defines: Mapping[str, int]) -> _Program:
    """Return the program that the cache has or, compiled now, will have."""
    if _cache is None:
        compiled = compile_source(source, defines)
        return _Program(name, source, defines, None, "", compiled, is_old=False)
    cache = ProgramCache(_cache)
    key = cache_key(source, folder / "include" / "kernel", defines)
    kept = cache.get(key)
    compiled = compile_source(source, defines) if kept is None else kept
    if kept is None:
        cache.put(key, compiled)
    for problem in cache.problems:
        _log.warning("%s: %s", name, problem)
    is_old = kept is not None and not cache.is_refused(key)
    return _Program(name, source, defines, cache, key, compiled, is_old)


def _link_to_cgroup(program: int, cgroup: str, attach_type: int) -> int:
    """Attach by a BPF link (Linux 5.7) and return its descriptor, whose closing detaches.

    Not with bcc's attach_func: that replaces attached programs and outlives the process.
    """
    target = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        link: int = libbpf().bpf_link_create(program, target, attach_type, None)
    finally:
        os.close(target)
    if link < 0:  # libbpf returns the negative errno
        raise OSError(-link, f"cannot attach to {cgroup}: {os.strerror(-link)}")
    return link


def _source(folder: Path, name: str) -> str:
    """Return a program with its headers inlined: bcc rewrites map methods in the main text only."""

    def header(match: re.Match[str]) -> str:
        return (folder / "include" / match[1]).read_text().replace("#pragma once\n", "")

    return re.sub(r'^#include "(\w+\.h)"$', header, (folder / name).read_text(), flags=re.M)
