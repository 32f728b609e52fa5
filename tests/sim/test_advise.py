# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What ``sweetpoint advise`` promises of an observed node, and what enforcing then brings."""

from collections.abc import Callable
from dataclasses import replace
import json
from pathlib import Path
from typing import Any

import pytest

from controller.cli.main import main
from controller.core.model import Mode, QosClass, Workload, WorkloadSample
from controller.demo.simulated_node import SimulatedNode
from controller.host.store import Store
from controller.kube.capacity import ForecastRecord
from controller.kube.forecast_store import ForecastStore
from tests.sim.explaining import START
from tests.support.loops.closed_loop import make_settings, make_spec
from tests.support.loops.history_loop import RecordedLoop

Advise = Callable[..., str]


@pytest.fixture
def advise(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> Advise:
    """Run the command; return what it prints."""

    def run(*options: str) -> str:
        assert main(["advise", "--data-dir", str(data_dir), "--since", START, *options]) == 0
        return capsys.readouterr().out

    return run


def load(loop: RecordedLoop[SimulatedNode]) -> None:
    """Ten minutes, half of them with two best-effort jobs that hurt."""
    for wants in ([0.0, 0.0], [1.2, 0.5]) * 2:
        loop.node.wants = list(wants)
        loop.run(150)


def observed(data_dir: Path, **changes: Any) -> RecordedLoop[SimulatedNode]:
    loop = RecordedLoop(
        SimulatedNode(3, wants=(0.0, 0.0)), make_settings(mode=Mode.OBSERVE), data_dir
    )
    for name, value in changes.items():
        setattr(loop.node, name, value)
    load(loop)
    loop.stop()
    return loop


def test_promised_and_kept(data_dir: Path, advise: Advise) -> None:
    loop = observed(data_dir)
    found = json.loads(advise("--json"))
    (service,) = found["services"]
    assert (service["service"], service["channel"]) == ("web-0", "cpu")
    times = service["modes"]["observe"]
    assert times["suffered_ns"] == pytest.approx(300e9, rel=0.15)
    assert times["states_ns"]["squeeze"] > 0.9 * times["suffered_ns"]
    assert service["be_share"] > 0.9
    shares = {each["workload"]: each["share"] for each in service["culprits"]}
    assert shares["batch-0"] > 1.5 * shares["batch-1"] > 0.2
    causes = found["slow"]["web-0"]
    assert sum(each["time_ns"] for each in causes) == pytest.approx(times["suffered_ns"], rel=0.1)
    assert (causes[0]["because"], causes[0]["name"]) == ("best-effort", "batch-0")
    taken = found["taken_at_most"]
    assert taken["used_cpu_s"] == pytest.approx(300 * 1.7, rel=0.05)
    assert 0.5 * taken["used_cpu_s"] < taken["cut_cpu_s"] < taken["used_cpu_s"]
    assert sum(taken["by_workload"].values()) == pytest.approx(taken["cut_cpu_s"], rel=0.01)
    assert loop.files.cut_cpu_s == pytest.approx(taken["cut_cpu_s"], rel=0.01)

    loop.settings = make_settings()
    loop.start()
    used_before = loop.node.best_effort_cpu_s
    load(loop)
    loop.stop()
    used = loop.node.best_effort_cpu_s - used_before
    # What was promised is a bound: no more was taken, and the service suffered for less time.
    assert 300 * 1.7 - used <= taken["cut_cpu_s"] * 1.02
    again = json.loads(advise("--json"))["services"][0]["modes"]
    assert again["observe"]["suffered_ns"] == times["suffered_ns"]
    assert again["enforce"]["suffered_ns"] < 0.6 * times["suffered_ns"]
    text = advise()
    assert "10min in observe mode and 10min in enforce mode" in text
    assert "observe   suffered" in text and "enforce   suffered" in text
    assert "How sure is this?" in text


def test_a_service_that_only_throttles_itself_gains_nothing(data_dir: Path, advise: Advise) -> None:
    observed(data_dir, throttled_ratio=0.5)
    text = advise()
    assert "held back by its own limit" in text
    assert "web-0 was slow for" in text
    assert "to do     raise its CPU limit: no other work slows it down" in text
    (service,) = json.loads(advise("--json"))["services"]
    states = service["modes"]["observe"]["states_ns"]
    assert states["self"] > 0.9 * sum(states.values())


def test_no_service_suffered(data_dir: Path, advise: Advise) -> None:
    loop = RecordedLoop(SimulatedNode(3, wants=()), make_settings(mode=Mode.OBSERVE), data_dir)
    loop.run(300)
    loop.stop()
    text = advise()
    assert "there was nothing to protect" in text
    assert "would have limited no best-effort work" in text


def test_only_enforced(data_dir: Path, advise: Advise) -> None:
    loop = RecordedLoop(SimulatedNode(3, wants=(1.2,)), make_settings(), data_dir)
    loop.run(60)
    loop.stop()
    text = advise()
    assert "Enforcing took about" in text and "would have taken" not in text


def test_names_cannot_control_the_terminal(data_dir: Path, advise: Advise) -> None:
    node = SimulatedNode(3, wants=(1.2, 0.5))
    node.best_effort[0] = node.best_effort[0]._replace(name="x\x1b[2J")
    node.sensitive[0] = node.sensitive[0]._replace(service="w\x1b[2J")
    loop = RecordedLoop(node, make_settings(mode=Mode.OBSERVE), data_dir)
    loop.run(60)
    loop.stop()
    text = advise()
    assert r"x\x1b[2J" in text
    assert r"w\x1b[2J: requests and limits N/A" in text
    assert text.replace("\n", "").isprintable()


def test_a_service_gains_from_what_another_one_needs(data_dir: Path, advise: Advise) -> None:
    node = SimulatedNode(3, wants=(1.2, 0.5), services=2, request_rate=500.0)
    loop = RecordedLoop(node, make_settings(mode=Mode.OBSERVE), data_dir)
    loop.run(120)
    loop.stop()
    services = json.loads(advise("--json"))["services"]
    assert {each["service"] for each in services} == {"web-0", "web-1"}
    others = 0
    for each in services:
        times = each["modes"]["observe"]
        others += times["states_ns"].get("other", 0)
        assert each["gain_at_most_ns"] > 0.9 * times["suffered_ns"]
        # Before the first limit.
        assert times["in_vain_ns"].get("other", 0) < 2 * 10**9
    assert others > 30 * 10**9


@pytest.mark.parametrize("sched_idle", [False, True])
def test_the_order_of_tasks_may_help_at_once(
    data_dir: Path, advise: Advise, sched_idle: bool
) -> None:
    # Above the sweet point, and within a wide dead zone: nothing is squeezed.
    settings = make_settings(make_spec(dead_zone=0.6), sched_idle=sched_idle, mode=Mode.OBSERVE)
    loop = RecordedLoop(SimulatedNode(3, wants=(0.03,)), settings, data_dir)
    loop.run(60)
    loop.stop()
    (service,) = json.loads(advise("--json"))["services"]
    times = service["modes"]["observe"]
    too_short_ns = times["states_ns"]["free"]
    assert too_short_ns > 0
    assert times["in_vain_ns"].get("free") == (None if sched_idle else too_short_ns)
    in_vain_ns = sum(times["in_vain_ns"].values())
    assert service["gain_at_most_ns"] == times["suffered_ns"] - in_vain_ns
    assert ("too short" in advise()) is not sched_idle


def test_without_data_what_was_suffered_is_a_lower_bound(data_dir: Path, advise: Advise) -> None:
    loop = RecordedLoop(SimulatedNode(3, wants=(0.0,)), make_settings(mode=Mode.OBSERVE), data_dir)
    loop.node.blind = True
    loop.run(60)
    text = advise()
    assert "No data on cpu for " in text and "what services suffered then is N/A" in text
    assert "No service was seen above a sweet point while there was data." in text
    assert "nothing to protect" not in text
    loop.node.blind = False
    loop.node.wants = [1.2]
    loop.run(60)
    loop.stop()
    assert "observe   suffered at least " in advise()
    assert json.loads(advise("--json"))["no_data_ns"]["cpu"]["observe"] > 30 * 10**9


class UnmeasuredNode(SimulatedNode):
    """A node without a measure of the CPU use of best-effort work."""

    def _sample(self, workload: Workload) -> WorkloadSample:
        found = super()._sample(workload)
        return found if workload.qos is QosClass.LS else found._replace(oncpu_ns=None)


def test_what_was_not_measured_is_not_zero(data_dir: Path, advise: Advise) -> None:
    loop = RecordedLoop(
        UnmeasuredNode(3, wants=(1.2, 0.5)), make_settings(mode=Mode.OBSERVE), data_dir
    )
    loop.run(60)
    loop.stop()
    text = advise()
    assert "Taken: N/A. The CPU use of best-effort work was not measured." in text
    assert "would have" not in text and "CPU seconds" not in text


def test_a_node_without_services(data_dir: Path, advise: Advise) -> None:
    node = SimulatedNode(3, wants=(1.2,), services=0)
    loop = RecordedLoop(node, make_settings(mode=Mode.OBSERVE), data_dir)
    loop.run(60)
    loop.stop()
    assert "Suffered: N/A. There was no service in this time." in advise()


def test_nothing_promised_where_nothing_was_observed(data_dir: Path, advise: Advise) -> None:
    loop = RecordedLoop(SimulatedNode(3, wants=(1.2,)), make_settings(), data_dir)
    loop.run(60)
    loop.stop()
    found = json.loads(advise("--json"))
    assert found["taken_at_most"] is None
    assert [each["gain_at_most_ns"] for each in found["services"]] == [None]
    text = advise()
    assert "gain      N/A: nothing was only observed" in text
    assert "Enforcing took about" in text and "would have taken" not in text


def test_evictions_are_not_part_of_the_bound(data_dir: Path, advise: Advise) -> None:
    settings = make_settings(mode=Mode.OBSERVE)
    profile = replace(settings.profiles["default"], evict_enabled=True, evict_after_ns=20 * 10**9)
    settings = replace(settings, profiles={"default": profile})
    loop = RecordedLoop(SimulatedNode(3, wants=(1.2,)), settings, data_dir)
    loop.run(60)
    loop.stop()
    assert "Not counted: 1 decided eviction." in advise()


def test_how_often_the_forecast_of_the_capacity_was_broken(data_dir: Path, advise: Advise) -> None:
    observed(data_dir)
    assert "Capacity" not in advise()
    store = Store(data_dir)
    ForecastStore(store).write({"cpu": ForecastRecord(30, 5, 1), "memory": ForecastRecord(3)})
    store.close()
    said = "Capacity: other work used more {} than forecast and reserve in {}."
    cpu, memory = (line for line in advise().splitlines() if line.startswith("Capacity"))
    assert cpu == said.format("cpu", "1 of 5 hours (20%)")
    assert memory == said.format("memory", "0 of 0 hours (N/A)")
    assert json.loads(advise("--json"))["forecasts"]["cpu"] == {
        "hours": 30,
        "judged": 5,
        "broken": 1,
        "expected_use_ratio": None,
        "expected_use_day_ratio": None,
    }
