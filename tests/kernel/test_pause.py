# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pauses of a running agent: knobs are back within a tick and written nowhere until the end."""

from collections.abc import Mapping
import os
from pathlib import Path
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from controller.agent.recording import Entry, read, replay
from controller.core.model import Knob
from controller.host.facts import CgroupLayout
from controller.host.pause_file import EVERYTHING, PauseEntry, change_pauses, pause_file
from tests.kernel.agent import AgentRun, Site
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU, PROFILE, outweigh
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel

TICK_S = 0.2
# Ten ticks: how long the knobs are watched during a pause.
WATCHED_S = 2.0


@pytest.fixture
def site(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Site:
    return Site(cgroup_root, cgroup_layout, tmp_path)


def command(site: Site, *words: str) -> str:
    """Run a sub-command on the state directory of *site* and return what it printed."""
    state = str(site.home / "state")
    line = [sys.executable, "-m", "controller.cli.main", *words, "--state-dir", state]
    return subprocess.run(line, check=True, capture_output=True, text=True, timeout=60).stdout


def pause(site: Site, scope: str = EVERYTHING, name: str = "", seconds: float = 600.0) -> None:
    now_s = time.time()
    change_pauses(site.home / "state", [PauseEntry(scope, name, now_s + seconds)], (), now_s)


def resume(site: Site) -> None:
    change_pauses(site.home / "state", (), None, time.time())


def changed(site: Site, before: Mapping[str, str]) -> set[str]:
    return {name for name, text in site.knobs().items() if text != before[name]}


def watch(site: Site, before: Mapping[str, str], seconds: float = WATCHED_S) -> None:
    """Check for *seconds* that every knob has its value of *before*."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert changed(site, before) == set()
        time.sleep(0.01)


def quota_is_limited(agent: AgentRun) -> bool:
    return any(
        knob["knob"] == Knob.CPU_QUOTA and not knob["applied"].startswith("max")
        for knob in agent.status()["knobs"]
    )


def test_while_squeezed_everything_is_back_in_one_tick(site: Site) -> None:
    site.write("profiles: [tight.yaml]\n")
    tight = PROFILE.replace("name: tight", "name: nginx").partition("evict:")[0]
    (site.home / "tight.yaml").write_text(tight)
    outweigh(site.root)
    outweigh(site.root / "batch")
    before = site.knobs()
    recording = site.home / "ticks.jsonl.gz"
    wanted = [
        Load(site.service, "bursts", CPU),
        Load(site.batch[0], "hog", CPU),
        Load(site.batch[1], "hog", CPU),
    ]
    with loads(wanted, seconds=120) as running, AgentRun(site, "--record", str(recording)) as agent:
        agent.ready()
        running.start()
        eventually("a squeeze", lambda: quota_is_limited(agent))
        assert changed(site, before)
        pause(site)
        eventually("everything restored", lambda: not changed(site, before))
        watch(site, before, 5.0)
        status = agent.status()
        assert [(each["scope"], each["source"]) for each in status["pauses"]] == [
            (EVERYTHING, "file")
        ]
        assert status["plan"]["released"]
        # Measuring goes on.
        assert status["plan"]["loops"][0]["value"] is not None
        page = agent.get("/metrics") or ""
        assert 'sweetpoint_paused{name="",scope="everything",source="file"} 1.0' in page
        resume(site)
        eventually("a squeeze again", lambda: quota_is_limited(agent))
        assert agent.stop() == 0
    assert site.knobs() == before
    assert "pause: everything" in agent.output
    assert "pause: ended" in agent.output
    check_recording(list(read(recording)))
    assert all(entry.plan == plan for entry, plan in replay(read(recording)))


def check_recording(entries: list[Entry]) -> None:
    """Check what the agent itself saw: restores in the first tick of the pause, then no write."""
    paused = [entry for entry in entries if entry.snapshot.pause is not None]
    first, *later = paused
    assert first.plan.actions
    assert {each.knob for each in first.plan.actions} == {Knob.CPU_QUOTA}
    # The outcomes of these actions are in the next entry.
    assert all(each.failure is None and each.original is None for each in later[0].outcomes)
    assert len(later[0].outcomes) == len(first.plan.actions)
    assert not [each for entry in later for each in entry.plan.actions]
    assert not [each for entry in later[1:] for each in entry.outcomes]
    assert len(later) >= 5.0 / TICK_S - 5


def test_it_ends_by_itself(site: Site) -> None:
    before = site.knobs()
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        printed = command(site, "pause", "--for", "4s")
        assert "everything" in printed and "no agent runs" not in printed
        eventually("everything restored", lambda: not changed(site, before))
        watch(site, before, 1.0)
        eventually("the end of the pause", site.protected)
        assert agent.status()["pauses"] == []
        assert agent.stop() == 0
    assert site.knobs() == before


def test_it_outlives_restarts_and_the_death_of_the_agent(site: Site) -> None:
    before = site.knobs()
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        pause(site)
        eventually("everything restored", lambda: not changed(site, before))
        guardian, child = agent.pids()
        os.kill(child, signal.SIGKILL)
        eventually("the next agent", lambda: agent.pids() != (guardian, child))
        agent.ready()
        watch(site, before)
        assert agent.status()["plan"]["released"]
        assert agent.stop() == 0
    with AgentRun(site) as agent:
        agent.ready()
        watch(site, before)
        command(site, "resume")
        agent.enforcing()
        assert agent.stop() == 0
    assert site.knobs() == before


def test_a_pause_of_a_killed_agent_holds_from_its_next_start(site: Site) -> None:
    before = site.knobs()
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        guardian, child = agent.pids()
        os.kill(child, signal.SIGSTOP)  # otherwise it restores when the guardian dies
        os.kill(guardian, signal.SIGKILL)
        os.kill(child, signal.SIGKILL)
        agent.wait()
    assert changed(site, before)
    command(site, "pause")
    with AgentRun(site) as agent:
        agent.ready()
        watch(site, before)
        assert agent.stop() == 0
    assert not list((site.home / "state" / "journal").iterdir())


def test_a_workload_and_a_service(site: Site) -> None:
    before = site.knobs()
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        # sched-idle lies on the cgroup above both; now the other one has it alone.
        pause(site, "workload", "batch:one")
        # Its own knob is written before the one above is given back.
        both = site.root / "batch"
        eventually("one alone", lambda: site.idle(site.batch[1]) and not site.idle(both))
        until = time.monotonic() + WATCHED_S
        while time.monotonic() < until:
            assert not site.idle(site.batch[0])
            assert not site.idle(both)
            time.sleep(0.01)
        resume(site)
        agent.enforcing()
        pause(site, "workload", "batch")  # all workloads of the entry
        eventually("everything restored", lambda: not changed(site, before))
        watch(site, before)
        assert not agent.status()["plan"]["released"]
        resume(site)
        agent.enforcing()
        pause(site, "service", "web")
        eventually("everything restored", lambda: not changed(site, before))
        watch(site, before)
        assert agent.stop() == 0
    assert site.knobs() == before


def damaged(file: Path) -> None:
    file.write_text('{"version": 1, "pauses": [{"scope": "\x1b[31m\\ud800"}]}')


def of_a_user(file: Path) -> None:
    os.chown(file, 65534, 65534)


def writable(file: Path) -> None:
    file.chmod(0o666)


def too_large(file: Path) -> None:
    file.write_text('{"version": 1, "pauses": []' + " " * (1 << 19) + "}")


@pytest.mark.parametrize("spoil", [damaged, of_a_user, writable, too_large])
def test_a_file_that_cannot_be_trusted_is_reported_once_and_ignored(site: Site, spoil: Any) -> None:
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        file = pause_file(site.home / "state")
        pause(site, "service", "nobody")
        eventually("the pause", lambda: agent.status()["pauses"])
        pause(site)
        spoil(file)
        eventually("the problem", lambda: agent.status()["pause_problems"].get("file"))
        eventually("protection", site.protected)
        time.sleep(5 * TICK_S)
        assert site.protected()
        assert "sweetpoint_pause_problem" in (agent.get("/metrics") or "")
        pause(site)  # the command replaces such a file
        eventually("the pause", lambda: not site.idle(site.root / "batch"))
        assert agent.stop() == 0
    assert agent.output.count("the pauses in it are ignored") == 1
    assert "\x1b" not in agent.output
