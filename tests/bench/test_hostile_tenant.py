# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a best-effort tenant costs the agent by what it does as fast as it can.

Slices beside a quiet tenant and beside hostile ones take turns in one agent. The cost is the CPU
time of the agent's process beyond that of the quiet slice of the same round; the time of the BPF
programs is the tenant's own. ``SWEETPOINT_TENANT_SECONDS`` is the length of a slice, 6 by default,
``SWEETPOINT_TENANT_ROUNDS`` how many rounds there are, 4 by default.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
import contextlib
import os
from pathlib import Path
import statistics
import time
from typing import NamedTuple

import pytest

from tests.bench.arms import RunTime, process_run_time
from tests.bench.crowd import BEARS, crowd
from tests.bench.neighbours import started
from tests.kernel.agent import AgentRun, Site
from tests.kernel.loads import Load, loads
from tests.support.cgroups import remove_cgroup

pytestmark = [pytest.mark.bench, pytest.mark.kernel]

SECONDS = int(os.environ.get("SWEETPOINT_TENANT_SECONDS", "6"))
ROUNDS = int(os.environ.get("SWEETPOINT_TENANT_ROUNDS", "4"))
SETTLE_S = 1
MOST_PERCENT = 3.0
QUIET = "quiet"
# The programs of a tenant: kind, and how many processes, pairs, threads or cgroups of its own.
TENANTS = {
    QUIET: (),
    "forks, sleeps, wakes": (("forks", 4), ("wakes", 4), ("threads", 64)),
    "the same, and cgroups": (("forks", 4), ("wakes", 4), ("threads", 64), ("cgroups", 64)),
}


class Slice(NamedTuple):
    """What the agent used, and what ran meanwhile, by looks and by switches of the host."""

    percent: float
    bpf: RunTime
    looks: Counter[str]
    seconds: float


@pytest.mark.usefixtures("bpf_statistics")
@pytest.mark.parametrize("service", ["well", "as the shipped profile finds it"])
def test_cost_of_a_hostile_tenant(service: str, site: Site, program: Path) -> None:
    """A service that stays well lets the agent leave out ticks, which a tenant might undo."""
    services, jobs = crowd(site, 20, 180)
    if service == "well":
        (site.home / "bears.yaml").write_text(BEARS)
        site.config.write_text(f"{site.config.read_text()}profiles: [bears.yaml]\n")
    found: dict[str, list[Slice]] = {name: [] for name in TENANTS}
    with contextlib.ExitStack() as stack:
        stack.enter_context(loads([Load(services[0], "bursts")])).start()
        agent = stack.enter_context(AgentRun(site)).ready()
        for number in range(ROUNDS):
            # In another order each time, so that none always follows the same one.
            names = list(TENANTS)[number % len(TENANTS) :] + list(TENANTS)[: number % len(TENANTS)]
            for name in names:
                with _tenant(program, jobs[0], TENANTS[name]):
                    found[name].append(_slice(agent))
        assert agent.status()["tick"]["failed"] == 0
        assert agent.stop() == 0
    costs = {name: _costs(found[QUIET], slices) for name, slices in found.items()}
    print(f"\n\nthe service is {service}:")
    for name, slices in found.items():
        _print(name, slices, costs[name])
    for name, cost in costs.items():
        assert statistics.median(cost) <= MOST_PERCENT, name


@contextlib.contextmanager
def _tenant(program: Path, cgroup: Path, kinds: Sequence[tuple[str, int]]) -> Iterator[None]:
    """Run *kinds* in *cgroup*. The tenant makes and removes cgroups below its own one only."""
    own = cgroup / "own"
    own.mkdir()
    with contextlib.ExitStack() as stack:
        stack.callback(remove_cgroup, own)
        for kind, number in kinds:
            directory = [str(own)] if kind == "cgroups" else []
            command = [str(program), kind, str(20 * SECONDS), *directory, str(number)]
            load = stack.enter_context(started(command, [cgroup]))
            assert load.stdout is not None and load.stdout.readline() == "ready\n"
        yield


def _slice(agent: AgentRun) -> Slice:
    pid = agent.pids()[1]
    looks = Counter(agent.status()["tick"]["looks"])
    time.sleep(SETTLE_S)  # a request for a page is no part of the slice
    before, programs, began_s = _cpu_s(pid), process_run_time(pid), time.monotonic()
    time.sleep(SECONDS)
    after, ran, seconds = _cpu_s(pid), process_run_time(pid), time.monotonic() - began_s
    looks = Counter(agent.status()["tick"]["looks"]) - looks
    bpf = RunTime(ran.ns - programs.ns, ran.switches - programs.switches)
    return Slice(100 * (after - before) / seconds, bpf, looks, seconds)


def _cpu_s(pid: int) -> float:
    """Return the user and system time of *pid*: proc_pid_stat(5), fields 14 and 15."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _costs(quiet: list[Slice], slices: list[Slice]) -> list[float]:
    return [each.percent - other.percent for each, other in zip(slices, quiet, strict=True)]


def _print(name: str, slices: list[Slice], costs: list[float]) -> None:
    percent = [each.percent for each in slices]
    switches = [each.bpf.switches / each.seconds for each in slices]
    inside = [each.bpf.ns / each.bpf.switches for each in slices]
    print(
        f"\n{name}: {statistics.median(percent):.2f} % of a CPU "
        f"({min(percent):.2f} to {max(percent):.2f}), "
        f"{statistics.median(costs):+.2f} ({min(costs):+.2f} to {max(costs):+.2f}); "
        f"{statistics.median(switches):.0f} switches per second, "
        f"{statistics.median(inside):.0f} ns in the programs for each"
    )
    print(f"    looks: {dict(sum((each.looks for each in slices), Counter()))}")
