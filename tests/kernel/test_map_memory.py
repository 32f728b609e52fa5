# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of the BPF maps on a machine with 128 CPUs, as reported by the kernel in fdinfo."""

from dataclasses import replace
from pathlib import Path
import re

import pytest

from controller.probes.bpf.btf import Btf
from controller.probes.bpf.loader import ProgramSpec, load
from controller.probes.counters import COUNTERS
from controller.probes.perf import find_source
from controller.probes.sched import MAX_SLOTS
from controller.probes.sched_program import sched_spec
from tests.kernel.without import btf_without_sched_info

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]

CPUS, WORKLOADS, MOST_BYTES = 128, 1000, 64 << 20


def test_maps_for_128_cpus_and_1000_workloads(tmp_path: Path) -> None:
    assert MAX_SLOTS >= WORKLOADS + 3
    # The worst case: all counters, and the map of wakeup stamps.
    sched = sched_spec(
        Btf(btf_without_sched_info(tmp_path)),
        cpus=CPUS,
        max_slots=MAX_SLOTS,
        max_latency=256,
        blame=True,
        counters=dict.fromkeys(COUNTERS, find_source("cpu-clock")),
    )
    net = ProgramSpec(
        source="net.bpf.c",
        defines={"NCPU": CPUS, "MAX_SLOTS": MAX_SLOTS},
        maps=("traffic", "slot_of_cgroup"),
        typed=False,
    )
    sizes: dict[str, int] = {}
    for spec in (replace(sched, maps=(*sched.maps, "throttles", "queued_at")), net):
        with load(spec) as loaded:
            for name, fd in loaded.map_fds.items():
                sizes[f"{spec.source} {name}"] = _bytes(fd)
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        print(f"{name:30} {size / 2**20:6.2f} MiB")
    print(f"{'all':30} {sum(sizes.values()) / 2**20:6.2f} MiB")
    # Proves that the reported sizes are real.
    assert sizes["sched.bpf.c accounts"] >= 64 * CPUS * MAX_SLOTS
    assert sum(sizes.values()) <= MOST_BYTES


def _bytes(map_fd: int) -> int:
    match = re.search(r"^memlock:\s*(\d+)$", Path(f"/proc/self/fdinfo/{map_fd}").read_text(), re.M)
    assert match is not None
    return int(match[1])
