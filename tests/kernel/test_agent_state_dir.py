# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The state directory of a running agent: lost, unwritable, or another one in the configuration."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
import os
from pathlib import Path
import shutil
import signal
import subprocess
import sys
from typing import Any

import pytest

from controller.demo.programs import free_port
from controller.host.facts import CgroupLayout
from tests.kernel.agent import AgentRun, Site
from tests.kernel.guarded_run import alive
from tests.kernel.state_dirs import OBSTACLES, tmpfs, unwritable
from tests.support.waiting import DEADLINE_S, eventually

pytestmark = [pytest.mark.kernel, pytest.mark.apart]

thorough, soak = pytest.mark.thorough, pytest.mark.soak

# Enough for all that an agent stores, compiled programs included.
ROOM = "size=8m,nr_inodes=100"


@pytest.fixture
def site(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Site:
    return Site(cgroup_root, cgroup_layout, tmp_path)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """For mounts, which end after the agent."""
    with ExitStack() as stack:
        yield stack


@contextmanager
def stopped(run: AgentRun) -> Iterator[None]:
    """Let guardian and agent store nothing again while only a part of it is lost."""
    pids = run.pids()
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        states = [Path(f"/proc/{pid}/status") for pid in pids]
        eventually("a stop", lambda: all("\nState:\tT" in each.read_text() for each in states))
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def remove(state: Path, _stack: ExitStack) -> None:
    shutil.rmtree(state)


def replace(state: Path, _stack: ExitStack) -> None:
    state.rename(state.with_name("aside"))
    state.mkdir()


def empty(state: Path, _stack: ExitStack) -> None:
    for each in state.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()


def cover(state: Path, stack: ExitStack) -> None:
    stack.enter_context(tmpfs(state, ROOM))


LOSSES = (remove, replace, empty, cover)


def end_by_sigterm(run: AgentRun, _site: Site) -> None:
    assert run.stop() == 0


def kill_the_agent(run: AgentRun, _site: Site) -> None:
    os.kill(run.pids()[1], signal.SIGKILL)
    run.process.terminate()  # or the guardian would start another one
    assert run.wait() == 0
    assert ": restored: " in run.output


def kill_both(run: AgentRun) -> None:
    guardian, agent = run.pids()
    os.kill(agent, signal.SIGSTOP)  # it must not restore by itself
    os.kill(guardian, signal.SIGKILL)
    os.kill(agent, signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    eventually("the end of the agent", lambda: not alive(agent))


def kill_both_and_release(run: AgentRun, site: Site) -> None:
    held = site.knobs()
    kill_both(run)
    assert site.knobs() == held
    assert "restored" in sweetpoint("release", "--state-dir", f"{site.home}/state").stdout


def kill_both_and_start(run: AgentRun, site: Site) -> None:
    kill_both(run)
    with AgentRun(site, "--mode", "observe") as second:
        second.ready()


ENDS = (end_by_sigterm, kill_the_agent, kill_both_and_release, kill_both_and_start)


def pairs(causes: Sequence[Any], ends: Sequence[Any]) -> list[Any]:
    """Return all pairs of as many *causes* and *ends*; each is once in ``make test-all``."""
    return [
        pytest.param(cause, end, marks=thorough if row == column else soak)
        for row, cause in enumerate(causes)
        for column, end in enumerate(ends)
    ]


def sweetpoint(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "controller.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def state_dir(run: AgentRun) -> Mapping[str, Any]:
    return dict(run.status()["state_dir"])


def records(site: Site) -> set[str]:
    return {each.name for each in (site.home / "state" / "journal").glob("*.json")}


def has_open(pid: int, path: Path) -> bool:
    """Whether the process *pid* has the file at *path* open."""
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            if each.samefile(path):
                return True
    return False


def refused_second(site: Site) -> str:
    """Start another agent on the same directory and return its message."""
    config = site.home / "second.yaml"
    config.write_text(site.config.read_text().replace(str(site.port), str(free_port())))
    done = sweetpoint("run", "--config", str(config), "--once")
    assert done.returncode == 1
    return done.stderr


def check_loss(
    site: Site,
    stack: ExitStack,
    lose: Callable[[Path, ExitStack], None],
    end: Callable[[AgentRun, Site], None],
) -> None:
    before = site.knobs()
    with AgentRun(site) as run:
        run.ready().enforcing()
        held = records(site)
        assert held
        with stopped(run):
            lose(site.home / "state", stack)
        eventually("the loss noticed", lambda: state_dir(run)["losses"] == 1)
        assert state_dir(run)["problem"] == ""
        assert "sweetpoint_state_dir_losses_total 1.0" in run.metrics()
        assert records(site) >= held
        # The guardian takes the new lock as well, to hold it between two agents.
        lock = site.home / "state" / "lock"
        eventually("the lock of both", lambda: all(has_open(pid, lock) for pid in run.pids()))
        refused = refused_second(site)
        assert "already runs on this host ({} and {} hold".format(*run.pids()) in refused
        assert site.protected()
        end(run, site)
    assert site.knobs() == before
    assert not records(site)


def test_after_a_removal_a_restore_finds_everything(site: Site, stack: ExitStack) -> None:
    check_loss(site, stack, remove, kill_both_and_release)


@pytest.mark.parametrize(("lose", "end"), pairs(LOSSES, ENDS))
def test_after_any_loss_and_any_end_every_knob_is_back(
    site: Site,
    stack: ExitStack,
    lose: Callable[[Path, ExitStack], None],
    end: Callable[[AgentRun, Site], None],
) -> None:
    check_loss(site, stack, lose, end)


@thorough
def test_a_loss_while_nothing_is_held(site: Site) -> None:
    site.write(mode="observe")
    with AgentRun(site) as run:
        run.ready()
        with stopped(run):
            shutil.rmtree(site.home / "state")
        eventually("the loss noticed", lambda: state_dir(run)["losses"] == 1)
        assert "already runs on this host" in refused_second(site)
        with stopped(run):
            shutil.rmtree(site.home / "state")
        eventually("another loss", lambda: state_dir(run)["losses"] == 2)
        assert run.stop() == 0


# Not with a start, which needs a directory that can be written.
@pytest.mark.parametrize(("obstacle", "end"), pairs(OBSTACLES, ENDS[:3]))
def test_an_unwritable_directory_is_told_and_its_knobs_stay(
    site: Site, obstacle: str, end: Callable[[AgentRun, Site], None]
) -> None:
    before = site.knobs()
    with tmpfs(site.home / "state", ROOM) as state, AgentRun(site) as run:
        run.ready().enforcing()
        held = records(site)
        with unwritable(state, obstacle) as code:
            eventually("a problem", lambda: os.strerror(code) in state_dir(run)["problem"])
            assert "sweetpoint_state_dir_problem 1.0" in run.metrics()
            assert site.protected()
            assert records(site) == held
            assert "already runs on this host" in refused_second(site)
            end(run, site)
            assert site.knobs() == before


@thorough
@pytest.mark.parametrize("obstacle", ["full", "read-only"])
def test_what_cannot_be_recorded_again_is_not_held(site: Site, obstacle: str) -> None:
    before = site.knobs()
    with AgentRun(site) as run:
        run.ready().enforcing()
        size = "size=4k,nr_inodes=4" if obstacle == "full" else "ro"
        with ExitStack() as covers:
            with stopped(run):
                cover = covers.enter_context(tmpfs(site.home / "state", size))
                if obstacle == "full":
                    (cover / "ballast").write_bytes(bytes(4096))
            eventually("everything restored", lambda: site.knobs() == before)
            eventually("a problem", lambda: state_dir(run)["problem"])
        # The directory as it was.
        eventually("no problem", lambda: not state_dir(run)["problem"])
        run.enforcing()
        assert run.stop() == 0
    assert site.knobs() == before
    assert "a held knob has no record: restoring every knob" in run.output
    assert "can be written again" in run.output


@thorough
def test_a_directory_that_is_removed_where_it_is_mounted_from(site: Site, stack: ExitStack) -> None:
    """As in a container, where the host's directory is mounted and removed by the host."""
    before = site.knobs()
    source, state = site.home / "source", site.home / "state"
    source.mkdir(mode=0o700)
    state.mkdir()
    subprocess.run(["mount", "--bind", source, state], check=True)
    stack.callback(lambda: subprocess.run(["umount", "-l", state], check=True))
    with AgentRun(site) as run:
        run.ready().enforcing()
        with stopped(run):
            shutil.rmtree(source)
        eventually("everything restored", lambda: site.knobs() == before)
        assert "still mounted here" in eventually("a problem", lambda: state_dir(run)["problem"])
        assert run.stop() == 0
    assert site.knobs() == before


@thorough
def test_a_pause_outlives_the_loss(site: Site) -> None:
    before = site.knobs()
    with AgentRun(site) as run:
        run.ready().enforcing()
        state = site.home / "state"
        assert sweetpoint("pause", "--state-dir", str(state)).returncode == 0
        eventually("the pause", lambda: site.knobs() == before)
        with stopped(run):
            shutil.rmtree(state)
        eventually("the loss noticed", lambda: state_dir(run)["losses"] == 1)
        eventually("the file again", (state / "pause.json").exists)
        assert [each["source"] for each in run.status()["pauses"]] == ["file"]
        assert site.knobs() == before
        assert sweetpoint("resume", "--state-dir", str(state)).returncode == 0
        run.enforcing()
        assert run.stop() == 0


@thorough
def test_a_restarted_agent_keeps_the_directory_of_its_guardian(site: Site) -> None:
    before = site.knobs()
    other = site.home / "other"
    with AgentRun(site) as run:
        run.ready().enforcing()
        site.config.write_text(site.config.read_text().replace(f"{site.home}/state", str(other)))
        os.kill(run.process.pid, signal.SIGHUP)
        applied = 'sweetpoint_config_reloads_total{result="applied"} 1.0'
        eventually("a reload", lambda: applied in run.metrics())
        _, first = run.pids()
        os.kill(first, signal.SIGKILL)
        eventually("another agent", lambda: run.pids()[1] != first)
        run.ready().enforcing()
        # The guardian restores what this agent holds, and starts no third one.
        os.kill(run.pids()[1], signal.SIGKILL)
        run.process.terminate()
        assert run.wait() == 0
    assert site.knobs() == before
    assert not other.exists()
    assert "reload: state_dir changes only with a restart" in run.output
    assert f"state_dir {other} is not used before" in run.output
