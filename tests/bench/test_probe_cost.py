# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Cost of the sched probe and its counters per context switch, compared with other variants.

There are two measures. The CPU time of ``perf bench sched pipe`` (two switches per operation) is
the total cost, but varies by tens of ns, and by hundreds on a machine that is not idle. The BPF
statistics of the kernel are reproducible to a few ns, but do not contain the cost of entering the
program, and add about 50 ns of their own.
"""

from collections.abc import Mapping
from pathlib import Path
import statistics

import pytest

from controller.core.model import CgroupId
from controller.host.facts import CgroupLayout
from tests.bench.arms import CPU, RunTime, arms, attached, pipe_us, run_time
from tests.kernel.loads import Load, loads
from tests.kernel.without import btf_without_sched_info

pytestmark = [pytest.mark.bench, pytest.mark.kernel]

ROUNDS = 7
STATISTICS_ROUNDS = 3
SWITCHES_PER_OPERATION = 2
BLAME, COUNTERS = "sched with blame", "with blame and counters"


class Cgroups:
    """A service and a batch cgroup; ``members`` maps their ids to whether latency is recorded."""

    def __init__(self, root: Path, layout: CgroupLayout) -> None:
        self.paths = {name: root / name for name in ("service", "batch")}
        for path in self.paths.values():
            path.mkdir()
        self.members = {
            CgroupId(layout.hierarchy, path.stat().st_ino): name == "service"
            for name, path in self.paths.items()
        }

    def pair(self, where: str) -> tuple[Path, Path]:
        """Return the cgroups of the two processes of the pipe benchmark."""
        service, batch = self.paths.values()
        return (service, service) if where == "one cgroup" else (service, batch)


@pytest.fixture
def cgroups(cgroup_root: Path, cgroup_layout: CgroupLayout) -> Cgroups:
    return Cgroups(cgroup_root, cgroup_layout)


@pytest.mark.parametrize("where", ["one cgroup", "two cgroups"])
def test_cost_in_cpu_time(where: str, cgroups: Cgroups, tmp_path: Path) -> None:
    programs = arms(tmp_path, btf_without_sched_info(tmp_path))
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(ROUNDS):
        for name, arm in programs.items():
            with attached(arm, cgroups.members):
                times[name].append(pipe_us(*cgroups.pair(where)))
    print(f"\npipe in {where}, {ROUNDS} interleaved rounds, ns per switch over nothing:")
    # Differences within a round, because the speed of the machine varies between rounds.
    extra = {
        name: [
            (with_ - without) * 1000 / SWITCHES_PER_OPERATION
            for with_, without in zip(values, times["nothing"], strict=True)
        ]
        for name, values in times.items()
    }
    for name, values in extra.items():
        print(
            f"  {name:25} {statistics.median(values):6.0f} ns  (rounds {min(values):.0f} to "
            f"{max(values):.0f}; {statistics.median(times[name]):.3f} us/op)"
        )
    cost = {name: statistics.median(values) for name, values in extra.items()}
    print(f"  wakeup hash: {cost['wakeup hash'] / cost['sched']:.1f} times sched without blame")
    if where == "one cgroup":
        assert cost["sched"] <= 120
        assert cost["wakeup hash"] >= 2.5 * cost["sched"]
        assert cost[BLAME] <= 150
    else:
        assert cost[COUNTERS] <= 450


@pytest.mark.usefixtures("bpf_statistics")
@pytest.mark.parametrize("where", ["one cgroup", "two cgroups"])
def test_cost_inside_the_programs(where: str, cgroups: Cgroups, tmp_path: Path) -> None:
    programs = arms(tmp_path, btf_without_sched_info(tmp_path))
    inside: dict[str, list[float]] = {}
    for _ in range(STATISTICS_ROUNDS):
        for name, arm in programs.items():
            with attached(arm, cgroups.members) as loaded:
                if loaded is not None:
                    before = run_time(loaded)
                    pipe_us(*cgroups.pair(where))
                    inside.setdefault(name, []).append(_per_switch(before, run_time(loaded)))
    print(f"\npipe in {where}, {STATISTICS_ROUNDS} rounds, ns inside the programs per switch:")
    _print(inside)
    cost = {name: statistics.median(values) for name, values in inside.items()}
    if where == "one cgroup":
        assert cost[COUNTERS] - cost[BLAME] <= 30


MIXES = {
    "eight hogs, two cgroups": [("service", "hog")] * 4 + [("batch", "hog")] * 4,
    "service beside four hogs": [("service", "bursts")] * 4 + [("batch", "hog")] * 4,
}


@pytest.mark.usefixtures("bpf_statistics")
@pytest.mark.parametrize("mix", MIXES)
def test_cost_with_blame(mix: str, cgroups: Cgroups, tmp_path: Path) -> None:
    programs = arms(tmp_path, btf_without_sched_info(tmp_path))
    inside: dict[str, list[float]] = {}
    for name, arm in programs.items():
        with attached(arm, cgroups.members) as loaded:
            if loaded is None:
                continue
            wanted = [Load(cgroups.paths[cgroup], kind, CPU) for cgroup, kind in MIXES[mix]]
            with loads(wanted, seconds=3) as running:
                before = run_time(loaded)
                running.work()
                after = run_time(loaded)
        assert after.switches - before.switches > 500
        inside[name] = [_per_switch(before, after)]
    print(f"\n{mix} on one CPU, ns inside the programs per switch:")
    _print(inside)
    # These switches are rare and find cold caches, so only a ratio is meaningful.
    assert inside[BLAME][0] <= 0.6 * inside["wakeup hash"][0]


def _per_switch(before: RunTime, after: RunTime) -> float:
    return (after.ns - before.ns) / (after.switches - before.switches)


def _print(inside: Mapping[str, list[float]]) -> None:
    for name, values in inside.items():
        spread = f"  ({min(values):.0f} to {max(values):.0f})" if len(values) > 1 else ""
        print(f"  {name:25} {statistics.median(values):6.0f} ns{spread}")
