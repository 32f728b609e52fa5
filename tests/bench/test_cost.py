# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the agent costs by number of workloads, asleep and busy, by process and with BPF.

``SWEETPOINT_COST_SECONDS`` is the length of a row, 60 by default, ``SWEETPOINT_COST_LATER`` the age
in seconds of an agent that is measured again. Each row is printed, those of young agents are
written to ``reports/cost.json``.
"""

from collections.abc import Iterator, Sequence
import contextlib
import json
import os
from pathlib import Path
import re
import subprocess
import time
from typing import Any

import pytest

from tests.bench.arms import program_run_time
from tests.bench.crowd import crowd
from tests.kernel.agent import AgentRun, Site
from tests.kernel.loads import Load, loads

pytestmark = [pytest.mark.bench, pytest.mark.kernel]

SECONDS = int(os.environ.get("SWEETPOINT_COST_SECONDS", "60"))
REPORT = Path("reports/cost.json")
STATISTICS = Path("/proc/sys/kernel/bpf_stats_enabled")
SETTLE_S = 15
FIRST_S = 300
LATER_S = int(os.environ.get("SWEETPOINT_COST_LATER", "900"))


@pytest.fixture
def bpf_statistics() -> Iterator[None]:
    before = STATISTICS.read_text()
    STATISTICS.write_text("1")
    try:
        yield
    finally:
        STATISTICS.write_text(before)


@pytest.mark.parametrize(
    ("workloads", "busy"), [(20, False), (200, False), (1000, False), (200, True)]
)
@pytest.mark.usefixtures("bpf_statistics")
def test_cost(workloads: int, busy: bool, site: Site) -> None:
    """A tenth of the workloads are services. Busy ones wake twenty times a second."""
    with _tasks(_cgroups(site, workloads), busy=busy), AgentRun(site) as agent:
        agent.ready()
        time.sleep(SETTLE_S)
        row = _measure(agent, workloads, busy)
        status = agent.status()
        assert agent.stop() == 0
    _keep(row)
    assert len(status["workloads"]) == workloads
    assert status["tick"]["failed"] == 0


@pytest.mark.usefixtures("bpf_statistics")
def test_cost_does_not_grow(site: Site) -> None:
    """Old agents cost what they cost after five minutes. Other work varies the CPU time of both."""
    assert LATER_S > FIRST_S + SECONDS
    with _tasks(_cgroups(site, 200), busy=False), AgentRun(site) as agent:
        agent.ready()
        began_s = time.monotonic()
        rows = []
        for after_s in (FIRST_S, LATER_S):
            time.sleep(max(0.0, began_s + after_s - time.monotonic()))
            rows.append(_measure(agent, 200, False))
        assert agent.status()["tick"]["failed"] == 0
        assert agent.stop() == 0
    first, later = rows
    assert later["pss_mib"] <= first["pss_mib"] + 1
    assert later["agent_cpu_percent"] <= 1.2 * first["agent_cpu_percent"]


def _measure(agent: AgentRun, workloads: int, busy: bool) -> dict[str, Any]:
    """Print and return what *agent* costs for SECONDS."""
    pids = agent.pids()
    before, began_s = _taken(pids), time.monotonic()
    time.sleep(SECONDS)
    after, took_s = _taken(pids), time.monotonic() - began_s
    pss, anonymous = (sum(_memory(pid)[kind] for pid in pids) for kind in ("Pss", "Pss_Anon"))
    tick = agent.status()["tick"]
    row = {
        "workloads": workloads,
        "busy": busy,
        "seconds": round(took_s),
        "pss_mib": round(pss / 1024, 1),
        "anonymous_mib": round(anonymous / 1024, 1),
        "guardian_cpu_percent": round(100 * (after[0] - before[0]) / took_s, 3),
        "agent_cpu_percent": round(100 * (after[1] - before[1]) / took_s, 3),
        "bpf_cpu_percent": round(100 * (after[2] - before[2]) / took_s, 3),
        "written_kib": round((after[3] - before[3]) / 1024, 1),
        "tick_median_ms": round(tick["duration_median_ns"] / 1e6, 2),
        "tick_p99_ms": round(tick["duration_p99_ns"] / 1e6, 2),
    }
    print(f"\n{json.dumps(row)}")
    return row


def _cgroups(site: Site, workloads: int) -> list[Path]:
    """Make the cgroups and the configuration; return one leaf for each workload."""
    services, jobs = crowd(site, workloads // 10, workloads - workloads // 10)
    return [*services, *jobs]


@contextlib.contextmanager
def _tasks(cgroups: Sequence[Path], *, busy: bool) -> Iterator[None]:
    if busy:
        wanted = [Load(cgroup, "idle") for cgroup in cgroups]
        with loads(wanted, seconds=SECONDS + 120) as running:
            running.start()
            yield
        return
    sleepers = []
    try:
        for cgroup in cgroups:
            sleepers.append(subprocess.Popen(["sleep", "infinity"]))
            (cgroup / "cgroup.procs").write_text(str(sleepers[-1].pid))
        yield
    finally:
        for sleeper in sleepers:
            sleeper.kill()
        for sleeper in sleepers:
            sleeper.wait()


def _taken(pids: tuple[int, int]) -> tuple[float, float, float, int]:
    """Return the CPU seconds of guardian, agent and BPF programs so far, and the bytes written."""
    guardian, agent = (sum(map(_oncpu_s, Path(f"/proc/{pid}/task").iterdir())) for pid in pids)
    return guardian, agent, _programs_s(pids[1]), sum(map(_written_bytes, pids))


def _oncpu_s(task: Path) -> float:
    return int((task / "schedstat").read_text().split()[0]) / 1e9


def _programs_s(pid: int) -> float:
    """Return the run time of the BPF programs that links of process *pid* hold."""
    infos = (info.read_text() for info in Path(f"/proc/{pid}/fdinfo").iterdir())
    found = {int(number) for text in infos for number in re.findall(r"prog_id:\s*(\d+)", text)}
    assert found
    return sum(program_run_time(number).ns for number in found) / 1e9


def _written_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))


def _memory(pid: int) -> dict[str, int]:
    """Return the KiB of /proc/PID/smaps_rollup by name."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return {name: int(kib) for name, kib in re.findall(r"^(\w+): +(\d+) kB", text, re.MULTILINE)}


def _keep(row: dict[str, object]) -> None:
    """Put *row* in the report, in place of an earlier one with the same workloads."""
    rows = json.loads(REPORT.read_text()) if REPORT.exists() else []
    same = row["workloads"], row["busy"]
    rows = [each for each in rows if (each["workloads"], each["busy"]) != same]
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps([*rows, row], indent=1) + "\n")
