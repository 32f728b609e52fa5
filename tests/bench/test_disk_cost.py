# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Cost of the disk probe per request, by the kernel's statistics.

They do not contain the cost of entering the program, and add about 50 ns of their own. The disk is
a loop device in memory, so that requests come as fast as they can.
"""

import statistics

import pytest

from tests.kernel import test_disk_probe as probe
from tests.kernel.disks import read_blocks

pytestmark = [pytest.mark.bench, pytest.mark.kernel]

ROUNDS = 5
REQUESTS = 20_000
# Where the requests come from: the workload itself, below it, and outside all workloads.
PLACES = {"itself": "service", "two levels below": "service/pod/container", "outside": "outside"}
MOST_NS = 150 + 50


readers = probe.readers


@pytest.mark.usefixtures("bpf_statistics")
def test_cost_of_a_request(readers: probe.Readers) -> None:
    took_ns: dict[str, list[float]] = {place: [] for place in PLACES}
    for _ in range(ROUNDS):
        for place, name in PLACES.items():
            (readers.root / name).mkdir(parents=True, exist_ok=True)
            before = readers.probe.cost
            read_blocks(readers.disks[0], readers.root / name, REQUESTS, size=512)
            after = readers.probe.cost
            assert after is not None
            runs, time_ns = after.runs, after.time_ns
            if before is not None:
                runs, time_ns = runs - before.runs, time_ns - before.time_ns
            took_ns[place].append(time_ns / runs)
    for place, found in took_ns.items():
        print(f"\n{place}: {statistics.median(found):.0f} ns, {min(found):.0f} to {max(found):.0f}")
    assert statistics.median(took_ns["itself"]) <= MOST_NS
