# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Programs of the cache that the kernel refuses: dropped, and compiled again once."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from controller.host.facts import CgroupLayout
from controller.probes.bpf import loader
from controller.probes.bpf.compiled import Compiled
from controller.probes.bpf.compiler import compile_source
from controller.probes.bpf.loader import LoadError, ProgramSpec, load, prepare, use_cache
from controller.probes.bpf.program_cache import ProgramCache
from controller.probes.cgroup_moves import MoveProbe, moves_spec

pytestmark = pytest.mark.kernel

# Its typed variant is refused however often it is compiled, the other one is not.
SOURCE = Path(__file__).with_name("refused_typed.bpf.c")
# exit, without a value to return: no kernel takes it.
REFUSED = bytes([0x95, 0, 0, 0, 0, 0, 0, 0])


class Compiler:
    """Counts what is compiled; ``last`` is the number of programs since it was read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = 0
        monkeypatch.setattr(loader, "compile_source", self._compile)

    def _compile(self, source: str, defines: Mapping[str, int]) -> Compiled:
        self._count += 1
        return compile_source(source, defines)

    @property
    def last(self) -> int:
        count, self._count = self._count, 0
        return count


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(loader, "_cache", None)  # restored after the test
    monkeypatch.setattr(loader, "_prepared", {})
    use_cache(tmp_path / "programs")
    return tmp_path / "programs"


@pytest.fixture
def compiler(programs: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    return Compiler(monkeypatch)


def spec(*, typed: bool) -> ProgramSpec:
    return ProgramSpec(
        source=str(SOURCE), defines={}, maps=("runs",), tracepoint="sched_switch", typed=typed
    )


def spoil(programs: Path) -> None:
    """Replace each program by one that the kernel refuses, as a cache of this start would be."""
    cache = ProgramCache(programs)
    for file in programs.iterdir():
        if "." in file.name:
            file.unlink()
            continue
        kept = cache.get(file.name)
        assert kept is not None
        code = dict.fromkeys(kept.functions, REFUSED)
        cache.put(file.name, Compiled(kept.maps, code, {name: {} for name in code}))


def test_it_is_compiled_again_and_kept(
    programs: Path, compiler: Compiler, caplog: pytest.LogCaptureFixture
) -> None:
    load(spec(typed=False)).close()
    (file,) = programs.iterdir()
    good = file.read_bytes()
    spoil(programs)
    assert file.read_bytes() != good
    assert compiler.last == 1
    load(spec(typed=False)).close()
    assert compiler.last == 1
    assert "refused, compiled again" in caplog.text
    assert file.read_bytes() == good
    load(spec(typed=False)).close()
    assert compiler.last == 0


def test_what_every_compiler_makes_is_not_compiled_at_each_start(
    programs: Path, compiler: Compiler
) -> None:
    for compiled in (2, 0):  # both variants
        assert load(spec(typed=True)).untyped
        assert compiler.last == compiled
    spoil(programs)
    for compiled in (2, 0):
        assert load(spec(typed=True)).untyped
        assert compiler.last == compiled


def test_a_refusal_of_the_host_is_none_of_the_program(programs: Path, compiler: Compiler) -> None:
    wanted = ProgramSpec(source=str(SOURCE), defines={}, maps=("runs",), tracepoint="no_such")
    with pytest.raises(LoadError, match="no_such"):
        load(wanted)
    assert compiler.last
    with pytest.raises(LoadError, match="no_such"):
        load(wanted)
    assert compiler.last == 0


def test_a_prepared_one_is_dropped_and_compiled_by_the_next_start(
    programs: Path,
    compiler: Compiler,
    cgroup_layout: CgroupLayout,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    MoveProbe(cgroup_layout).close()
    spoil(programs)
    assert compiler.last
    prepare(moves_spec(cgroup_layout))
    for _ in range(2):
        with pytest.raises(LoadError):
            MoveProbe(cgroup_layout)
    assert compiler.last == 0
    monkeypatch.setattr(loader, "_prepared", {})
    prepare(moves_spec(cgroup_layout))
    assert compiler.last == 1
    MoveProbe(cgroup_layout).close()
    assert compiler.last == 0
