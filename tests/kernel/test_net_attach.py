# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How the net probe is attached: beside programs of others, and not after its process."""

from collections.abc import Iterator
import contextlib
import ctypes
from dataclasses import replace
import os
from pathlib import Path
import subprocess
import sys

import pytest

from controller.host.facts import CgroupLayout, possible_cpus
from controller.probes.bpf.libbpf import libbpf
from controller.probes.bpf.loader import LoadError
from controller.probes.net import NetProbe
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]

CPUS = max(possible_cpus()) + 1
INGRESS, EGRESS = 0, 1
ALLOW_MULTI = 2
CGROUP_SKB = 8


def attached(cgroup: Path) -> list[list[int]]:
    """Return the ids of the programs attached at *cgroup*: for ingress and for egress."""
    query = libbpf().bpf_prog_query
    result = []
    fd = os.open(cgroup, os.O_RDONLY)
    for kind in (INGRESS, EGRESS):
        ids, count, flags = (ctypes.c_uint32 * 64)(), ctypes.c_uint32(64), ctypes.c_uint32()
        assert not query(fd, kind, 0, ctypes.byref(flags), ids, ctypes.byref(count))
        result.append(list(ids[: count.value]))
    os.close(fd)
    return result


@contextlib.contextmanager
def foreign_program(cgroup: Path, flags: int) -> Iterator[None]:
    """Attach a program that lets everything pass, without a BPF link."""
    library = libbpf()
    # r0 = 1; exit
    code = (ctypes.c_uint64 * 2)(0x00000001_000000B7, 0x95)
    program = library.bpf_prog_load(CGROUP_SKB, b"other", b"GPL", code, ctypes.c_size_t(2), None)
    assert program >= 0, os.strerror(-program)
    target = os.open(cgroup, os.O_RDONLY)
    try:
        for kind in (INGRESS, EGRESS):
            assert library.bpf_prog_attach(program, target, kind, flags) == 0
        yield
        for kind in (INGRESS, EGRESS):
            assert library.bpf_prog_detach2(program, target, kind) == 0
    finally:
        os.close(target)
        os.close(program)


def at(layout: CgroupLayout, root: Path) -> CgroupLayout:
    """Return *layout* with *root* as the mount of the cgroup2 tree."""
    return replace(layout, unified=root)


def test_foreign_programs_stay_attached(cgroup_layout: CgroupLayout, cgroup2_root: Path) -> None:
    with foreign_program(cgroup2_root, ALLOW_MULTI):
        before = attached(cgroup2_root)
        assert [len(ids) for ids in before] == [1, 1]
        probe = NetProbe(at(cgroup_layout, cgroup2_root), cpus=CPUS, max_slots=8)
        during = attached(cgroup2_root)
        probe.close()
        assert [len(ids) for ids in during] == [2, 2]
        assert all(old[0] in new for old, new in zip(before, during, strict=True))
        assert attached(cgroup2_root) == before


def test_an_exclusive_foreign_program_is_a_load_error(
    cgroup_layout: CgroupLayout, cgroup2_root: Path
) -> None:
    with foreign_program(cgroup2_root, 0):
        before = attached(cgroup2_root)
        with pytest.raises(LoadError, match=r"cannot attach to .*Operation not permitted"):
            NetProbe(at(cgroup_layout, cgroup2_root), cpus=CPUS, max_slots=8)
        assert attached(cgroup2_root) == before


def test_a_missing_cgroup2_tree_is_a_load_error(cgroup_layout: CgroupLayout) -> None:
    with pytest.raises(LoadError, match="no cgroup2 tree is mounted"):
        NetProbe(replace(cgroup_layout, unified=None), cpus=CPUS)


_HOLDER = """
import sys
from dataclasses import replace
from pathlib import Path
from controller.host.facts import find_cgroup_layout
from controller.probes.net import NetProbe
layout = replace(find_cgroup_layout(), unified=Path(sys.argv[1]))
probe = NetProbe(layout, cpus=int(sys.argv[2]), max_slots=8)
print("holding", flush=True)
sys.stdin.read()
"""


def test_nothing_stays_attached_after_the_process_is_killed(cgroup2_root: Path) -> None:
    before = attached(cgroup2_root)
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(cgroup2_root), str(CPUS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "holding"
        assert [len(ids) for ids in attached(cgroup2_root)] == [len(ids) + 1 for ids in before]
    finally:
        holder.kill()
        holder.communicate()
    eventually("detached", lambda: attached(cgroup2_root) == before)
