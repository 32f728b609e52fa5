# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""When the state directory is compared with memory, and what is reported about it."""

from pathlib import Path
import shutil

import pytest

from actuators.executor import Executor
from actuators.journal import Journal
from actuators.record import Record
from controller.agent.eviction import EvictionDispatcher, read_history, write_history
from controller.agent.pauses import Pauses
from controller.agent.state_keeper import StateKeeper
from controller.config.sections.eviction import EvictionConfig
from controller.core.eviction.budget import EvictionHistory
from controller.core.model import Knob, KnobValue, Pause, Target, TargetKind
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout
from controller.host.pause_file import EVERYTHING, PauseEntry, change_pauses
from controller.host.state_dir import Lock, LockError, StateDirState
from controller.reconcilers.host_eviction import HostEvictions

IDLE = Record(
    Target(TargetKind.CGROUP, "cpu", 1, "/batch"),
    Knob.SCHED_IDLE,
    KnobValue("0 100"),
    KnobValue("0 100"),
    KnobValue("1"),
)


class Bench:
    """A state directory with a lock and the record of a held knob."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.lock = Lock(state)
        self.journal = Journal(state / "journal")
        self.journal.put(IDLE)
        self.stored_again = 0
        self.keeper = StateKeeper(self.lock, [self.journal], self._store_again)
        self.now_ns = 0

    def _store_again(self) -> None:
        self.stored_again += 1

    def poll(self, after_ns: int = NS_PER_SEC) -> bool:
        self.now_ns += after_ns
        return self.keeper.poll(self.now_ns)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "state")


def test_a_loss_is_found_within_a_second_and_counted(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    assert bench.poll()
    shutil.rmtree(bench.state)
    assert bench.poll(NS_PER_SEC - 1)
    assert not bench.state.exists()
    assert bench.poll(1)
    assert Journal(bench.state / "journal").records == (IDLE,)
    assert bench.keeper.state == StateDirState("", 1)
    assert bench.poll()
    assert (bench.keeper.state.losses, bench.stored_again) == (1, 1)
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert f"{bench.state} was removed or replaced: stored again" in caplog.text


def test_a_problem_is_logged_once_and_ends(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    shutil.rmtree(bench.state)
    bench.state.write_text("in its place")
    for _ in range(3):
        assert not bench.poll()
    assert "cannot open" in bench.keeper.state.problem
    assert bench.keeper.state.losses == 0
    assert len(caplog.records) == 1
    bench.state.unlink()
    with caplog.at_level("INFO"):
        assert bench.poll()
    assert bench.keeper.state == StateDirState("", 1)
    assert "can be written again" in caplog.text


def test_nothing_held_is_always_recorded(bench: Bench) -> None:
    bench.journal.remove(IDLE)
    shutil.rmtree(bench.state)
    bench.state.write_text("in its place")
    assert bench.poll()
    assert bench.keeper.state.problem


def test_an_agent_that_came_first_ends_every_tick(bench: Bench) -> None:
    shutil.rmtree(bench.state)
    other = Lock(bench.state)
    for _ in range(5):
        with pytest.raises(LockError, match="already runs"):
            bench.poll(1)
        bench.now_ns += NS_PER_SEC // 5
    other.close()
    assert bench.poll()


def test_pauses_go_on_and_are_stored_again(bench: Bench) -> None:
    now_s = 1_800_000_000.0
    pauses = Pauses(bench.state, lambda: "", lambda: now_s, lambda: now_s)
    entry = PauseEntry(EVERYTHING, "", now_s + 600)
    change_pauses(bench.state, [entry], (), now_s)
    assert pauses.poll() == Pause(everything=True)
    shutil.rmtree(bench.state)
    assert pauses.poll() == Pause(everything=True)
    assert bench.poll()
    now_s += 2
    assert pauses.poll() == Pause(everything=True)
    assert Pauses(bench.state, lambda: "", lambda: now_s).poll() == Pause(everything=True)
    change_pauses(bench.state, (), None, now_s)
    assert pauses.poll() is None


def test_a_lost_pause_that_ended_stays_lost(bench: Bench) -> None:
    now_s = 1_800_000_000.0
    pauses = Pauses(bench.state, lambda: "", lambda: now_s, lambda: now_s)
    change_pauses(bench.state, [PauseEntry(EVERYTHING, "", now_s + 5)], (), now_s)
    assert pauses.poll() is not None
    shutil.rmtree(bench.state)
    now_s += 6
    assert pauses.poll() is None
    assert not bench.state.exists()


def test_the_annotation_s_pause_is_stored_again(bench: Bench) -> None:
    now_s = 1_800_000_000.0
    pauses = Pauses(bench.state, lambda: "30m", lambda: now_s, lambda: now_s)
    assert pauses.poll() is not None
    shutil.rmtree(bench.state)
    assert bench.poll()
    pauses.store_again()
    now_s += 60
    restarted = Pauses(bench.state, lambda: None, lambda: now_s, lambda: now_s)
    assert restarted.poll() == Pause(everything=True)


def test_the_history_of_evictions_is_stored_again(tmp_path: Path) -> None:
    history = EvictionHistory((5,), 9)
    write_history(tmp_path, history)
    layout = CgroupLayout(hierarchy="v2", version="v2", mount=tmp_path, unified=tmp_path)
    executor = Executor(Journal(tmp_path / "journal"), ())
    host = HostEvictions(EvictionConfig(), layout, executor)
    dispatcher = EvictionDispatcher(host, None, tmp_path)
    (tmp_path / "evictions.json").unlink()
    dispatcher.store_again()
    assert read_history(tmp_path, 10) == history
