# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The loader: fallback to the untyped variant, and errors of programs that cannot be loaded."""

import ctypes
from pathlib import Path
import time

import pytest

from controller.probes.bpf.libbpf import libbpf
from controller.probes.bpf.loader import LoadError, ProgramSpec, load

pytestmark = pytest.mark.kernel

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
        time.sleep(0.05)
        assert count(loaded.map_fds["runs"]) > 0


def test_tracepoint_that_does_not_exist_is_an_error() -> None:
    spec = ProgramSpec(source=str(SOURCE), defines={}, maps=("runs",), tracepoint="no_such")
    with pytest.raises(LoadError, match="no_such"):
        load(spec)
