# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pauses of a running agent: knobs are back at once and written nowhere until the end."""

from collections.abc import Callable, Mapping
from itertools import groupby
import os
from pathlib import Path
import shutil
import subprocess
import sys
import time

import pytest

from controller.agent.recording import Entry, read, replay
from controller.core.model import Knob
from controller.host.pause_file import EVERYTHING, PauseEntry, change_pauses, pause_file
from tests.kernel.agent import AgentRun, Site
from tests.kernel.explaining import squeezed
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU, outweigh
from tests.support.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.kernel

# How many ticks the knobs are watched during a pause.
WATCHED = 5


@pytest.fixture
def site(site: Site) -> Site:
    """A site whose agent ticks often, so that many ticks take no long time."""
    site.write("tick: 50ms\n")
    return site


def command(site: Site, *words: str) -> str:
    """Run a sub-command on the state directory of *site* and return what it printed."""
    state = str(site.home / "state")
    line = [sys.executable, "-m", "controller.cli.main", *words, "--state-dir", state]
    done = subprocess.run(line, check=True, capture_output=True, text=True, timeout=DEADLINE_S)
    return done.stdout


def pause(site: Site, scope: str = EVERYTHING, name: str = "", seconds: float = 3600.0) -> None:
    now_s = time.time()
    change_pauses(site.home / "state", [PauseEntry(scope, name, now_s + seconds)], (), now_s)


def resume(site: Site) -> None:
    change_pauses(site.home / "state", (), None, time.time())


def changed(site: Site, before: Mapping[str, str]) -> set[str]:
    return {name for name, text in site.knobs().items() if text != before[name]}


def stays_restored(site: Site, before: Mapping[str, str], agent: AgentRun) -> None:
    """Wait until every knob has its value of *before*, and check that it keeps it."""
    eventually("everything restored", lambda: not changed(site, before))

    def check() -> None:
        assert changed(site, before) == set()

    agent.watch(WATCHED, check)


def test_while_squeezed_everything_is_back_in_one_tick(site: Site) -> None:
    site.tighten()
    outweigh(site.root, 200)
    outweigh(site.root / "batch")
    before = site.knobs()
    recording = site.home / "ticks.jsonl.gz"
    wanted = [
        Load(site.service, "bursts", CPU),
        Load(site.batch[0], "hog", CPU),
        Load(site.batch[1], "hog", CPU),
    ]
    with loads(wanted) as running, AgentRun(site, "--record", str(recording)) as agent:
        agent.ready()
        running.start()

        def pauses_a_squeeze() -> bool:
            squeezed(agent)
            pause(site)
            if changed(site, before):
                return True
            # The agent let go of the squeeze meanwhile, or gave it back already.
            resume(site)
            eventually("the end of the pause", lambda: not agent.status()["pauses"])
            return False

        eventually("a pause during a squeeze", pauses_a_squeeze)
        stays_restored(site, before, agent)
        status = agent.status()
        assert [(each["scope"], each["source"]) for each in status["pauses"]] == [
            (EVERYTHING, "file")
        ]
        assert status["plan"]["released"]
        eventually(
            "measuring goes on",
            lambda: agent.status()["plan"]["loops"][0]["value"] is not None,
        )
        assert agent.series("sweetpoint_paused") == {("", "everything", "file"): 1.0}
        resume(site)
        squeezed(agent)
        assert agent.stop() == 0
    assert site.knobs() == before
    assert "pause: everything" in agent.output
    assert "pause: ended" in agent.output
    check_recording(list(read(recording)))
    assert all(entry.plan == plan for entry, plan in replay(read(recording)))


def check_recording(entries: list[Entry]) -> None:
    """Check what the agent saw: restores in the first tick of the last pause, then no write."""
    *_, paused = (
        [*group]
        for is_pause, group in groupby(entries, lambda e: e.snapshot.pause is not None)
        if is_pause
    )
    first, *later = paused
    assert first.plan.actions
    assert {each.knob for each in first.plan.actions} == {Knob.CPU_QUOTA}
    # The outcomes of these actions are in the next entry.
    assert all(each.failure is None and each.original is None for each in later[0].outcomes)
    assert len(later[0].outcomes) == len(first.plan.actions)
    assert not [each for entry in later for each in entry.plan.actions]
    assert not [each for entry in later[1:] for each in entry.outcomes]
    assert len(later) >= WATCHED


@pytest.mark.thorough
def test_it_ends_by_itself(site: Site) -> None:
    before = site.knobs()
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        printed = command(site, "pause", "--for", "1h")
        assert "everything" in printed and "no agent runs" not in printed
        stays_restored(site, before, agent)
        command(site, "pause", "--for", "1s")  # in place of the longer one
        eventually("the end of the pause", site.protected)
        eventually("a page without it", lambda: agent.status()["pauses"] == [])
        assert agent.stop() == 0
    assert site.knobs() == before


@pytest.mark.thorough
def test_it_outlives_restarts_and_the_death_of_the_agent(site: Site) -> None:
    before = site.knobs()
    with AgentRun(site) as agent:
        agent.ready().enforcing()
        pause(site)
        eventually("everything restored", lambda: not changed(site, before))
        agent.kill_agent()
        agent.ready()
        stays_restored(site, before, agent)
        assert agent.status()["plan"]["released"]
        assert agent.stop() == 0
    with AgentRun(site) as agent:
        agent.ready()
        stays_restored(site, before, agent)
        command(site, "resume")
        agent.enforcing()
        agent.kill_both()
    assert changed(site, before)
    # A pause that begins while no agent runs holds from the next start.
    command(site, "pause")
    with AgentRun(site) as agent:
        agent.ready()
        stays_restored(site, before, agent)
        assert agent.stop() == 0
    assert not list((site.home / "state" / "journal").iterdir())


@pytest.mark.thorough
def test_a_workload_and_a_service(site: Site) -> None:
    before = site.knobs()
    both = site.root / "batch"

    def one_is_free() -> bool:
        return not site.idle(site.batch[0]) and not site.idle(both)

    def check() -> None:
        assert one_is_free()

    with AgentRun(site) as agent:
        agent.ready().enforcing()
        # sched-idle lies on the cgroup above both; now the other one has it alone.
        pause(site, "workload", "batch:one")
        # Its own knob is written before the one above is given back.
        eventually("one alone", lambda: site.idle(site.batch[1]) and one_is_free())
        agent.watch(WATCHED, check)
        resume(site)
        agent.enforcing()
        pause(site, "workload", "batch")  # all workloads of the entry
        stays_restored(site, before, agent)
        assert not agent.status()["plan"]["released"]
        resume(site)
        agent.enforcing()
        pause(site, "service", "web")
        stays_restored(site, before, agent)
        assert agent.stop() == 0
    assert site.knobs() == before


def put(file: Path, text: str) -> None:
    """Replace the content of *file* in one step, so that the agent reads no half of it."""
    other = file.with_name("other")
    other.write_text(text)
    shutil.copymode(file, other)
    other.replace(file)


def damaged(file: Path) -> None:
    put(file, '{"version": 1, "pauses": [{"scope": "\x1b[31m\\ud800"}]}')


def of_a_user(file: Path) -> None:
    os.chown(file, 65534, 65534)


def writable(file: Path) -> None:
    file.chmod(0o666)


def too_large(file: Path) -> None:
    put(file, '{"version": 1, "pauses": []' + " " * (1 << 19) + "}")


@pytest.mark.thorough
def test_files_that_cannot_be_trusted_are_reported_once_and_ignored(site: Site) -> None:
    spoilers: tuple[Callable[[Path], None], ...] = (damaged, of_a_user, writable, too_large)
    file = pause_file(site.home / "state")

    def check() -> None:
        assert site.protected()

    with AgentRun(site) as agent:
        agent.ready().enforcing()
        for spoil in spoilers:
            pause(site)
            eventually("the pause", lambda: not site.idle(site.root / "batch"))
            spoil(file)
            eventually("the problem", lambda: agent.status()["pause_problems"].get("file"))
            agent.enforcing()
            agent.watch(WATCHED, check)
            assert agent.series("sweetpoint_pause_problem")
        pause(site)  # the command replaces such a file
        eventually("the pause", lambda: not site.idle(site.root / "batch"))
        assert agent.stop() == 0
    assert agent.output.count("the pauses in it are ignored") == len(spoilers)
    assert "\x1b" not in agent.output
