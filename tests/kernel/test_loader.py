# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The loader: fallback to the untyped variant, errors, and programs that are not compiled again."""

from collections.abc import Callable
import contextlib
import ctypes
from dataclasses import replace
import importlib.util
import os
from pathlib import Path
import shutil

import pytest

from controller.host.facts import CgroupLayout, possible_cpus
from controller.probes.bpf import loader
from controller.probes.bpf.btf import Btf
from controller.probes.bpf.libbpf import libbpf
from controller.probes.bpf.loader import LoadError, ProgramSpec, load, use_cache
from controller.probes.cgroup_moves import MoveProbe
from controller.probes.net import NetProbe
from controller.probes.perf import find_source
from controller.probes.sched_program import sched_spec
from controller.probes.tc_classifier import Classifier
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]

SOURCE = Path(__file__).with_name("refused_typed.bpf.c")


def count(map_fd: int) -> int:
    """Return the value at index 0 of an array of u64."""
    value = ctypes.c_uint64()
    key = ctypes.c_uint32(0)
    error = libbpf().bpf_map_lookup_elem(map_fd, ctypes.byref(key), ctypes.byref(value))
    assert error == 0
    return value.value


def test_refused_typed_program_falls_back_and_gives_the_reason() -> None:
    spec = ProgramSpec(source=str(SOURCE), defines={}, maps=("runs",), tracepoint="sched_switch")
    with load(spec) as loaded:
        assert "invalid" in loaded.untyped  # a word of the verifier's message
        assert len(loaded.link_fds) == 1
        eventually("a run of the program", lambda: count(loaded.map_fds["runs"]))


def test_tracepoint_that_does_not_exist_is_an_error() -> None:
    spec = ProgramSpec(source=str(SOURCE), defines={}, maps=("runs",), tracepoint="no_such")
    with pytest.raises(LoadError, match="no_such"):
        load(spec)


def test_only_the_descriptors_of_a_loaded_program_stay_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    bad = ProgramSpec(source=str(SOURCE), defines={}, maps=("runs",), tracepoint="no_such")
    with pytest.raises(LoadError):
        load(bad)
    assert set(os.listdir("/proc/self/fd")) == before
    spec = replace(bad, tracepoint="sched_switch")  # refused as a typed program
    with load(spec) as loaded:
        assert len(os.listdir("/proc/self/fd")) == len(before) + len(loaded.fds)
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the cache, which is in use during the test."""
    monkeypatch.setattr(loader, "_cache", None)  # restored after the test
    use_cache(tmp_path / "programs")
    return tmp_path / "programs"


@pytest.fixture
def break_bcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function after whose call bcc can no longer be imported, while its version is known."""

    def call(text: str = "raise ImportError('broken')") -> None:
        found = importlib.util.find_spec("bcc")
        assert found is not None
        assert found.origin is not None
        fake = tmp_path / "path" / "bcc"
        fake.mkdir(parents=True)
        (fake / "__init__.py").write_text(f"{text}\n")
        shutil.copy(Path(found.origin).with_name("version.py"), fake)
        monkeypatch.setenv("PYTHONPATH", str(fake.parent))

    return call


def load_everything(layout: CgroupLayout) -> None:
    """Load every program of the agent, the sched probe in all its variants."""
    cpus = max(possible_cpus()) + 1
    source = find_source("cpu-clock")
    for counters in ({}, {"cycles": source}):
        spec = sched_spec(
            Btf(), cpus=cpus, max_slots=16, max_latency=8, blame=True, counters=counters
        )
        for typed in (True, False):
            with load(replace(spec, typed=typed)) as loaded:
                assert bool(loaded.untyped) is not typed
                assert set(loaded.map_fds) == set(spec.maps)
    with contextlib.closing(MoveProbe(layout)) as moves:
        moves.poll()
    with contextlib.closing(Classifier(major=1, system_class=1, mark_mask=0xF)) as classifier:
        assert classifier.program_fds
    if layout.unified is not None:
        NetProbe(layout, cpus=cpus, max_slots=8).close()


def test_what_was_compiled_once_is_loaded_without_the_compiler(
    programs: Path, break_bcc: Callable[[], None], cgroup_layout: CgroupLayout
) -> None:
    load_everything(cgroup_layout)
    kept = {path.name for path in programs.iterdir()}
    break_bcc()
    load_everything(cgroup_layout)
    assert {path.name for path in programs.iterdir()} == kept
    spec = ProgramSpec(source=str(SOURCE), defines={}, maps=("runs",), tracepoint="sched_switch")
    with pytest.raises(LoadError, match=r"bcc cannot be loaded \(broken\)"):
        load(spec)


def test_a_missing_module_is_told(programs: Path, break_bcc: Callable[..., None]) -> None:
    break_bcc("import no_such_module")
    spec = ProgramSpec(source=str(SOURCE), defines={}, maps=("runs",), tracepoint="sched_switch")
    with pytest.raises(LoadError, match="module no_such_module is missing: install python3-bpfcc"):
        load(spec)


def test_a_program_from_the_cache_runs(programs: Path, break_bcc: Callable[[], None]) -> None:
    spec = ProgramSpec(source=str(SOURCE), defines={}, maps=("runs",), tracepoint="sched_switch")
    load(spec).close()
    break_bcc()
    with load(spec) as loaded:
        assert "invalid" in loaded.untyped
        eventually("a run of the program", lambda: count(loaded.map_fds["runs"]))


def test_a_damaged_file_is_named_and_compiled_again(
    programs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = ProgramSpec(
        source=str(SOURCE), defines={}, maps=("runs",), tracepoint="sched_switch", typed=False
    )
    load(spec).close()
    (file,) = programs.iterdir()
    content = file.read_bytes()
    file.write_bytes(content[:-7])
    with load(spec):
        assert [record.message for record in caplog.records if "damaged" in record.message]
    assert file.read_bytes() == content


def test_other_defines_are_another_program(programs: Path) -> None:
    for number in (1, 2):
        defines = {"NUMBER": number}
        spec = ProgramSpec(source=str(SOURCE), defines=defines, maps=("runs",), typed=False)
        load(spec).close()
    assert len(list(programs.iterdir())) == 2
