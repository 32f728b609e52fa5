# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The history of evictions: kept across restarts, and safe when its file is damaged."""

from dataclasses import replace
import json
from pathlib import Path

import pytest

from actuators.executor import Executor
from actuators.journal import Journal
from controller.agent.eviction import EvictionDispatcher, read_history, write_history
from controller.agent.recording import Entry, Recorder, read
from controller.config.sections.eviction import EvictionConfig
from controller.core.decision import Eviction, Plan
from controller.core.eviction.budget import EvictionBudget, EvictionHistory
from controller.core.model import CgroupId, Channel, EvictionAnswer, EvictionResult, Mode
from controller.core.planner import Planner
from controller.core.settings import EvictionLimits
from controller.demo.simulated_node import SimulatedNode
from controller.host.facts import CgroupLayout
from controller.reconcilers.host_eviction import HostEvictions
from tests.support.loops.closed_loop import make_settings

HOUR_NS = 3600 * 10**9
NOW_NS = 10 * HOUR_NS
EVICTION = Eviction(
    cgroup=CgroupId("v2", 7), name="hog", channel=Channel.CPU, service="web", blame=1.0, reason=""
)
PAST = EvictionHistory((NOW_NS - 5, NOW_NS), NOW_NS + HOUR_NS)


def test_a_written_history_is_read_back(tmp_path: Path) -> None:
    assert read_history(tmp_path, NOW_NS) == EvictionHistory()
    for past in (PAST, EvictionHistory()):
        write_history(tmp_path, past)
        assert read_history(tmp_path, NOW_NS) == past
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_times_of_an_earlier_boot_are_ignored(tmp_path: Path) -> None:
    write_history(tmp_path, PAST)
    (file,) = tmp_path.iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), "boot_id": "another"}))
    assert read_history(tmp_path, NOW_NS) == EvictionHistory()


@pytest.mark.parametrize(
    "damage",
    [
        {"asked_ns": [NOW_NS + 1]},
        {"asked_ns": [-1]},
        {"asked_ns": [2, 1]},
        {"asked_ns": list(range(61))},
        {"asked_ns": ["1"]},
        {"asked_ns": [True]},
        {"asked_ns": 7},
        {"asked_ns": None},
        {"not_before_ns": 1e9},
        {"not_before_ns": NOW_NS + 1000 * HOUR_NS},
        "",
        "{",
        "[]",
        "[" * 4000,
        "{}" + " " * 5000,
        "\x00",
        "\udcff",
    ],
)
def test_after_damage_no_evictions_for_an_hour(
    tmp_path: Path, damage: str | dict[str, object]
) -> None:
    write_history(tmp_path, PAST)
    (file,) = tmp_path.iterdir()
    text = damage
    if isinstance(damage, dict):
        text = json.dumps({**json.loads(file.read_text()), **damage})
    assert isinstance(text, str)
    file.write_bytes(text.encode(errors="surrogateescape"))
    budget = EvictionBudget(EvictionLimits(60), read_history(tmp_path, NOW_NS))
    assert not budget.allows(NOW_NS + HOUR_NS - 1, for_service=False)
    assert budget.allows(NOW_NS + HOUR_NS)


class Host:
    """A dispatcher on a host made of plain directories, whose configuration allows no eviction."""

    def __init__(self, home: Path) -> None:
        self.state = home / "state"
        layout = CgroupLayout(hierarchy="v2", version="v2", mount=home, unified=home)
        executor = Executor(Journal(home / "journal"), ())
        evictions = HostEvictions(EvictionConfig(), layout, executor)
        self.dispatcher = EvictionDispatcher(evictions, None, self.state)

    def request(self, past: EvictionHistory) -> EvictionAnswer:
        plan = Plan(time_ns=NOW_NS, eviction=EVICTION)
        self.dispatcher.dispatch(plan, past, (), enforcing=True, now_ns=NOW_NS)
        (answer,) = self.dispatcher.answers()
        return answer


def test_the_history_is_written_before_the_eviction(tmp_path: Path) -> None:
    host = Host(tmp_path)
    refused = host.request(PAST)
    assert refused.result is EvictionResult.HELD
    assert "its record cannot be written" in refused.message
    host.state.mkdir()
    assert host.request(PAST).result is EvictionResult.REPORTED
    assert read_history(host.state, NOW_NS) == PAST
    earlier = EvictionHistory((5,), 7)
    write_history(host.state, earlier)
    assert Host(tmp_path).dispatcher.history == earlier


def test_without_evictions_nothing_is_written(tmp_path: Path) -> None:
    host = Host(tmp_path)
    plan = Plan(time_ns=NOW_NS)
    host.dispatcher.dispatch(plan, EvictionHistory(), (), enforcing=True, now_ns=NOW_NS)
    assert not host.state.exists()


def test_a_recording_holds_the_history_of_its_planner(tmp_path: Path) -> None:
    node, settings = SimulatedNode(1), make_settings()
    planner = Planner(settings, node.workloads, PAST)
    snapshot = node.snapshot(0)
    entry = Entry(
        snapshot=snapshot,
        outcomes=(),
        plan=planner.step(snapshot, ()),
        anew=True,
        past_evictions=planner.past_evictions,
        settings=settings,
        workloads=node.workloads,
    )
    with Recorder(tmp_path / "recording") as recorder:
        recorder.write(entry)
    (again,) = read(tmp_path / "recording")
    assert again.past_evictions == PAST
    # A change of the mode keeps the history, also of evictions only reported in observe mode.
    planner.reconfigure(replace(settings, mode=Mode.OBSERVE))
    assert planner.past_evictions == PAST
