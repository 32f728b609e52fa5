# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Staged incidents on simulated nodes: ``sweetpoint explain`` names the true cause of each."""

from dataclasses import replace
from datetime import datetime, timedelta
import json
from pathlib import Path

import pytest

from controller.agent.history.incidents import Coverage
from controller.agent.history.records import Line
from controller.agent.history.service_story import ServiceStory
from controller.core.decision import Plan
from controller.core.model import (
    Channel,
    EvictionAnswer,
    EvictionResult,
    Knob,
    KnobValue,
    Mode,
    Pause,
    QosClass,
    Target,
    TargetKind,
)
from controller.demo.simulated_node import Plant, SimulatedNode
from tests.sim.explaining import START, Explain, incidents
from tests.sim.harm_node import HarmNode, settings_for
from tests.sim.plants import CacheNode, DiskNode, MemoryNode, NetworkNode, ResourceNode
from tests.support.loops.closed_loop import make_settings
from tests.support.loops.history_loop import EPOCH_NS, RecordedLoop, read_lines
from tests.support.loops.resource_loop import channel_of, resource_settings


def cpu_loop(
    data_dir: Path, *wants: float, mode: Mode = Mode.ENFORCE
) -> RecordedLoop[SimulatedNode]:
    return RecordedLoop(SimulatedNode(3, wants=wants), make_settings(mode=mode), data_dir)


class TwoCulprits(HarmNode):
    """A node on which batch-0 and batch-1 make the service wait, and batch-2 does not."""

    def __init__(self) -> None:
        plant = Plant(cpus=8, noise=0.1, unknown=0.0)
        super().__init__(3, [[6e6, 6e6, 0.0]], [0.0, 0.0, 0.5], plant)


@pytest.mark.parametrize("ahead", [slice(0, 5), slice(20, 60)])
def test_a_clock_that_was_ahead_for_a_while_hides_nothing_else(
    ahead: slice, data_dir: Path
) -> None:
    """The lines of that time are left out, not those that follow."""
    loop = cpu_loop(data_dir, 2.0, 1.0)
    loop.run(200)
    lines = [each for each in read_lines(data_dir) if isinstance(each, Line)]
    stories = []
    for shift_ns in (0, 365 * 24 * 3600 * 10**9):
        moved = [each._replace(wall_ns=each.wall_ns + shift_ns) for each in lines[ahead]]
        story = ServiceStory("web-0", Coverage(EPOCH_NS, EPOCH_NS + loop.now_ns))
        story.read([*lines[: ahead.start], *moved, *lines[ahead.stop :]])
        stories.append(story)
    right, wrong = stories
    assert wrong.coverage.observed_ns > 0.6 * right.coverage.observed_ns > 100 * 10**9
    assert {type(each) for each in wrong.incidents} >= {type(each) for each in right.incidents}
    assert right.incidents
    assert all(each.ended_ns is None or each.ended_ns >= each.began_ns for each in wrong.incidents)


def test_two_culprits_and_a_pause_of_one(data_dir: Path, explain: Explain) -> None:
    node = TwoCulprits()
    loop = RecordedLoop(node, settings_for(node, [2e6], make_settings()), data_dir)
    loop.run(60)
    node.wants = [1.2, 0.6, 0.5]
    loop.run(60)
    loop.pause = Pause(workloads=("batch-0",))
    loop.run(30)
    loop.pause = None
    loop.run(60)
    node.wants = [0.0, 0.0, 0.5]
    loop.run(120)
    loop.stop()

    (suffering, *_) = incidents(explain, "web-0", "suffering")
    shares = {each["workload"]: each["share"] for each in suffering["culprits"]}
    assert set(shares) == {"batch-0", "batch-1"}  # and not batch-2, which runs as well
    assert shares["batch-0"] == pytest.approx(0.65, abs=0.05)
    assert shares["batch-1"] == pytest.approx(0.33, abs=0.05)
    assert {"/batch-0", "/batch-1"} <= {each["target"] for each in suffering["limited"]}
    assert suffering["states_ns"]["squeeze"] > 10 * 10**9

    first, second = incidents(explain, "batch-0", "squeeze")
    assert (first["channel"], first["service"], first["helped"]) == ("cpu", "web-0", True)
    assert first["culprits"] == suffering["culprits"]
    assert first["own_share"] == shares["batch-0"]
    assert first["ended_by"] == "released: paused"
    assert second["ended_by"] == "released: no service is above its sweet point"
    begins, ends = incidents(explain, "batch-0", "note")
    assert begins["text"] == "begins: it is left alone, and its knobs are restored"
    assert ends["text"] == "ends"
    assert first["ended"] == begins["began"] < ends["began"] <= second["began"]
    text = explain("batch-0")
    named = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    assert f"of it: {named}" in text
    assert "limited for" in text and "because of web-0 on cpu" in text
    assert "cpu.quota of /batch-0: unlimited -> 0." in text

    other, again = incidents(explain, "batch-1", "squeeze")
    assert other["culprits"] == suffering["culprits"]
    assert other["own_share"] == shares["batch-1"]
    # For a moment the paused culprit explains the wait.
    assert begins["began"] <= other["ended"] < again["began"] <= ends["began"]
    assert incidents(explain, "batch-1", "note") == []
    # While one culprit is paused, the squeeze of the other is not enough: all are limited.
    for squeeze in incidents(explain, "batch-2", "squeeze"):
        assert begins["began"] <= squeeze["began"] <= ends["began"]
        assert squeeze["own_share"] is None


def test_the_use_before_a_limit(data_dir: Path, explain: Explain) -> None:
    loop = cpu_loop(data_dir, 0.0, 0.0)
    loop.run(60)
    loop.node.wants = [1.2, 0.5]
    loop.run(60)
    loop.stop()
    (squeeze,) = incidents(explain, "batch-0", "squeeze")
    # The moment in which it was limited counts as before.
    assert 1.2 * 1.1 >= squeeze["use_before_cpus"] > 2 * squeeze["use_cpus"]


def test_the_story_of_a_pod_is_that_of_its_containers(data_dir: Path, explain: Explain) -> None:
    loop = cpu_loop(data_dir, 0.0, 0.0, 0.0)
    pod = Target(TargetKind.CGROUP, "cpu", 99, "/pod")
    *members, other = loop.node.best_effort
    loop.node.best_effort = [
        each._replace(name=f"shop/pod/{each.name}", service="shop/pod", container_of=pod)
        for each in members
    ] + [other]
    loop.run(60)
    loop.node.wants = [0.9, 0.6, 0.0]
    loop.run(60)
    gone = loop.node.best_effort[0]
    loop.node.leave(0)
    loop.run(5)
    loop.node.wants = [0.0, 0.0]
    loop.run(120)
    loop.stop()
    (squeeze,) = incidents(explain, "pod", "squeeze")
    assert {each["target"] for each in squeeze["knobs"]} >= {"/batch-0", "/batch-1"}
    assert squeeze["own_share"] == pytest.approx(squeeze["be_share"], rel=0.1)
    assert squeeze["ended_by"] == "released: no service is above its sweet point"
    (one,) = incidents(explain, gone.name, "squeeze")
    assert squeeze["use_before_cpus"] > 1.3 * one["use_before_cpus"]
    assert one["ended_by"] == "the workload ended"
    assert {each["target"] for each in one["knobs"]} == {"/batch-0"}


@pytest.mark.parametrize("kind", [CacheNode, NetworkNode, MemoryNode, DiskNode])
def test_each_channel(kind: type[ResourceNode], data_dir: Path, explain: Explain) -> None:
    node = kind(1)
    loop = RecordedLoop(node, resource_settings(node), data_dir)
    loop.run(120)
    loop.stop()
    channel = channel_of(node)
    knobs = {
        Channel.CACHE: {Knob.LLC_WAYS, Knob.MBA},
        Channel.NETWORK: {Knob.TC_CEILING},
        Channel.MEMORY: {Knob.MEMORY_HIGH},
        Channel.IO: {Knob.IO_WEIGHT, Knob.IO_MAX},
    }[channel]
    (squeeze,) = incidents(explain, "batch-0", "squeeze")
    assert (squeeze["channel"], squeeze["service"]) == (channel, "web")
    assert {each["knob"] for each in squeeze["knobs"]} & knobs
    assert squeeze["be_share"] > 0.2
    first = max(squeeze["culprits"], key=lambda each: each["share"])
    assert first["workload"] == "batch-0"  # which wants most of the resource
    assert squeeze["helped"]
    text = explain("web")
    assert f"suffered on {channel}" in text
    assert "squeeze for" in text


@pytest.mark.parametrize(
    ("change", "state", "words"),
    [
        ({"throttled_ratio": 0.5}, "own limit", "held back by its own limit"),
        ({"steal_ratio": 0.9}, "host", "CPU time away"),
    ],
)
def test_a_service_that_suffers_for_another_reason(
    data_dir: Path, explain: Explain, change: dict[str, float], state: str, words: str
) -> None:
    loop = cpu_loop(data_dir, 0.0, 0.0)
    for name, value in change.items():
        setattr(loop.node, name, value)
    loop.run(30)
    loop.node.wants = [1.2, 0.5]
    loop.run(60)
    loop.stop()
    text = explain("web-0")
    assert "suffered on cpu" in text
    assert f"{state} for " in text and words in text
    # If it was limited at first, while the other cause was not known, that was taken back.
    squeezes = incidents(explain, "batch-0", "squeeze")
    assert len(squeezes) <= 1
    assert all(words in each["ended_by"] for each in squeezes)
    assert squeezes or "was not touched" in explain("batch-0")


def test_what_others_caused_is_not_said_to_be_helped_by_a_limit(
    data_dir: Path, explain: Explain
) -> None:
    """Three quarters of the wait are there without best-effort work, and end by themselves."""
    others = Plant(
        quiet_p99_ns=6e6, p99_ns=2e6, p99_at_cpus=1.775, free_jump=1.0, idle_jump=1.0, noise=0.1
    )
    node = SimulatedNode(1, others)
    loop = RecordedLoop(node, make_settings(), data_dir)
    loop.run(20)
    node.plant = replace(others, quiet_p99_ns=60e3)
    loop.run(60)
    loop.stop()
    for name, kind in (("web-0", "suffering"), ("batch-0", "squeeze")):
        first = incidents(explain, name, kind)[0]
        assert first["effect"]["highest"] - first["effect"]["after"] > 1
        assert first["helped"] is None
        text = explain(name)
        assert "it helped" not in text.replace("whether it helped", "")
        assert ": not known whether it helped, because at worst best-effort caused " in text


def test_a_workload_that_was_never_touched(data_dir: Path, explain: Explain) -> None:
    node = SimulatedNode(3, wants=(1.2, 0.5))
    quiet = node.best_effort[1]._replace(name="daemon", qos=QosClass.SYSTEM)
    node.best_effort[1] = quiet
    loop = RecordedLoop(node, make_settings(), data_dir)
    loop.run(60)
    loop.stop()
    assert "of class system: it is measured, and never touched" in explain("daemon")
    untouched = cpu_loop(data_dir.with_name("quiet"), 0.0, 0.0)
    untouched.run(60)
    untouched.stop()
    options = ("--since", START, "--data-dir", str(data_dir.with_name("quiet")))
    text = explain("batch-1", *options)
    assert "It was not touched: no limit was set on it" in text
    assert "It was never above a sweet point" in explain("web-0", *options)


def test_a_foreign_write(data_dir: Path, explain: Explain) -> None:
    loop = cpu_loop(data_dir, 1.2, 0.5)
    loop.run(40)
    loop.node.write(loop.node.best_effort[0], Knob.CPU_QUOTA, KnobValue("70000 100000 0"))
    loop.run(20)
    loop.stop()
    text = explain("batch-0")
    assert "another program set cpu.quota of /batch-0 to '70000 100000 0'" in text
    assert "another program wrote the knob" in text
    # It was stricter, so it was written again over the foreign value.
    assert [
        each["ended_by"] for each in json.loads(explain("batch-0", "--json"))["incidents"]
    ] == []
    squeezes = incidents(explain, "batch-0", "squeeze")
    assert [each["ended_by"] for each in squeezes] == [
        "another program wrote the knob",
        "the agent was stopped, and restored every knob",
    ]
    assert "another program" not in explain("batch-1")


def test_a_gap_between_runs(data_dir: Path, explain: Explain) -> None:
    loop = cpu_loop(data_dir, 1.2, 0.5)
    loop.run(60)
    loop.tick += 5 * 100  # killed, and started again after 100 s
    loop.start()
    loop.run(60)
    loop.stop()
    text = explain("batch-0")
    assert "the agent ended without notice (killed, or crashed)" in text
    assert "the next one started at" in text
    first, second = incidents(explain, "batch-0", "squeeze")
    assert "ended without notice" in first["ended_by"]
    assert "stopped" in second["ended_by"]
    (gap,) = incidents(explain, "batch-0", "gap")
    assert gap["began"] == first["ended"] < gap["ended"] <= second["began"]


def test_no_data(data_dir: Path, explain: Explain) -> None:
    loop = cpu_loop(data_dir, 1.2, 0.5)
    loop.run(40)
    loop.node.blind = True
    loop.run(20)
    loop.node.blind = False
    loop.run(20)
    loop.stop()
    text = explain("web-0")
    assert "data: no data on cpu" in text
    assert "data: data again" in text


def test_a_probe_that_dies_while_a_service_suffers(data_dir: Path, explain: Explain) -> None:
    loop = cpu_loop(data_dir, 1.2, 0.5)
    loop.run(10)
    loop.node.blind = True
    loop.run(60)
    loop.stop()
    (suffering,) = incidents(explain, "web-0", "suffering")
    assert suffering["ended_by"] == "there was no data any more"
    began, ended = (datetime.fromisoformat(suffering[each]) for each in ("began", "ended"))
    assert timedelta(seconds=5) < ended - began < timedelta(seconds=12)
    # What the channel did after that is not a part of it.
    lasted_ns = (ended - began) / timedelta(microseconds=1) * 1000
    assert 0 < sum(suffering["states_ns"].values()) <= lasted_ns
    assert "data: no data on cpu" in explain("web-0")
    (squeeze,) = incidents(explain, "batch-0", "squeeze")
    assert squeeze["ended_by"] == "released: there is no data, safe state"


class Evicting(RecordedLoop[SimulatedNode]):
    """A loop in which an eviction is answered, and its victim ends three seconds later."""

    leave_tick = -1

    def step(self) -> Plan:
        plan = super().step()
        self.evictions = ()
        if plan.eviction is not None:
            victim = plan.eviction
            answer = EvictionAnswer(
                victim.cgroup, victim.channel, EvictionResult.EVICTED, "within its budget"
            )
            self.evictions = (answer,)
            self.leave_tick = self.tick + 15
        if self.tick == self.leave_tick:
            self.node.leave(0)
        return plan


@pytest.mark.parametrize(
    "pause", [Pause(everything=True), Pause(workloads=("batch-0",)), Pause(services=("web-0",))]
)
def test_a_pause(data_dir: Path, explain: Explain, pause: Pause) -> None:
    node = SimulatedNode(3, wants=(1.2, 0.5))
    loop = RecordedLoop(node, make_settings(), data_dir)
    loop.run(40)
    loop.pause = pause
    loop.run(60)
    loop.pause = None
    loop.run(40)
    loop.stop()
    first, second = incidents(explain, "batch-0", "squeeze")
    assert first["ended_by"] == "released: paused"
    assert "stopped" in second["ended_by"]
    assert ("pause: begins" in explain("batch-0")) is pause.covers_workload("batch-0")
    service = explain("web-0")
    assert ("pause: begins" in service) is pause.covers_service("web-0")
    assert ("paused for" in service) is pause.covers_service("web-0")


def test_an_eviction_and_its_effect(data_dir: Path, explain: Explain) -> None:
    settings = make_settings()
    profile = replace(settings.profiles["default"], evict_enabled=True, evict_after_ns=20 * 10**9)
    settings = replace(settings, profiles={"default": profile})
    # A plant on which even the floor is too much.
    node = SimulatedNode(3, wants=(1.2, 0.0))
    node.plant = replace(node.plant, p99_ns=200e6)
    loop = Evicting(node, settings, data_dir)
    loop.run(180)
    loop.stop()
    (eviction,) = incidents(explain, "batch-0", "eviction")[:1]
    assert (eviction["channel"], eviction["service"]) == ("cpu", "web-0")
    assert eviction["answers"] == ["evicted: within its budget"]
    text = explain("batch-0")
    assert "eviction of batch-0 because of web-0 on cpu" in text
    assert "every knob has been at its stop" in text
    assert "the workload ended" in text
    assert "its eviction helped: deviation 1.99 before" in text
    assert "eviction of batch-0" in explain("web-0")
    assert "eviction of batch-0" not in explain("batch-1")


def test_observe_mode_says_would(data_dir: Path, explain: Explain) -> None:
    loop = cpu_loop(data_dir, 1.2, 0.5, mode=Mode.OBSERVE)
    loop.run(60)
    loop.stop()
    text = explain("batch-0")
    assert "would have been limited (observe mode)" in text
    assert "it helped" not in text and "it did not help" not in text
    service = explain("web-0")
    assert "would try" in service and "help" not in service


def test_a_change_of_the_mode_is_no_error(data_dir: Path, explain: Explain) -> None:
    loop = cpu_loop(data_dir, 1.2, 0.5, mode=Mode.OBSERVE)
    loop.run(40)
    loop.settings = replace(loop.settings, mode=Mode.ENFORCE)
    loop.planner.reconfigure(loop.settings, loop.workloads)
    loop.anew = True
    loop.run(20)
    loop.abandon()
    loop.run(0.2)
    loop.stop()
    squeezes = incidents(explain, "batch-0", "squeeze")
    assert [(each["mode"], each["ended_by"].partition(",")[0]) for each in squeezes] == [
        ("observe", "a reload with mode enforce"),
        ("enforce", "an error in the agent"),
    ]


@pytest.mark.parametrize(("mode", "text"), [(Mode.ENFORCE, "on"), (Mode.OBSERVE, "would be on")])
def test_the_order_of_tasks(data_dir: Path, explain: Explain, mode: Mode, text: str) -> None:
    settings = make_settings(mode=mode, sched_idle=True)
    loop = RecordedLoop(SimulatedNode(3, wants=(0.1,)), settings, data_dir)
    loop.run(20)
    loop.stop()
    assert f"order: sched-idle {text}: a latency-sensitive service is" in explain("batch-0")


def test_at_a_time(data_dir: Path, explain: Explain) -> None:
    loop = cpu_loop(data_dir, 0.0, 0.0)
    loop.run(300)
    loop.node.wants = [1.2, 0.5]
    loop.run(60)
    loop.node.wants = [0.0, 0.0]
    loop.run(600)
    loop.stop()
    assert "because of web-0 on cpu" in explain("batch-0", "--at", "2020-01-01T00:05:30Z")
    assert "It was not touched" in explain("batch-0", "--at", "2020-01-01T00:02:00Z")
    assert "It was not touched" in explain("batch-0", "--at", "2020-01-01T00:15:00Z")
    # Of the last day, which is the default.
    assert "The history holds nothing of this time" in explain("batch-0", "--since", "24h")


def test_names_are_found_and_cannot_control_the_terminal(data_dir: Path, explain: Explain) -> None:
    node = SimulatedNode(3, wants=(1.2, 0.5, 0.1))
    evil = "ns/x\x1b]0;owned\x07\u202e"
    for index, name in enumerate(("ns/job", evil, "other/job")):
        node.best_effort[index] = node.best_effort[index]._replace(name=name)
    node.sensitive[0] = node.sensitive[0]._replace(name="ns/web-abc", service="ns/we\x9bb")
    loop = RecordedLoop(node, make_settings(), data_dir)
    loop.run(40)
    loop.stop()
    assert "did you mean ns/job, other/job?" in explain("job", "--since", START, code=1)
    for name in ("ns/web-abc", "web-abc", "ns/we\x9bb", "ns/job", evil):
        text = explain(name, "--since", START)
        assert text.replace("\n", "").isprintable()
    assert r"ns/x\x1b]0;owned\x07\u202e" in explain("ns/job")
    error = explain("\x1b[2J", "--since", START, code=1)
    assert error.rstrip("\n").isprintable()
    assert json.loads(explain(evil, "--json"))["name"] == evil


def test_damage_is_said(data_dir: Path, explain: Explain) -> None:
    loop = cpu_loop(data_dir, 1.2, 0.5)
    loop.run(120)
    loop.stop()
    (file,) = (data_dir / "history").glob("moments-*")
    data = bytearray(file.read_bytes())
    data[len(data) // 2 :][:50] = b""
    data[len(data) // 2 : len(data) // 2 + 50] = bytes(50)
    file.write_bytes(data)
    assert "1 part of it cannot be read, so incidents may be missing" in explain("batch-0")


def test_errors_are_one_line(data_dir: Path, explain: Explain) -> None:
    assert "has no history yet" in explain("x", "--since", "2h", code=1)
    assert "'yesterday' is not a time" in explain("x", "--since", "yesterday", code=2)
    assert "is not a time" in explain("x", "--at", "25:00", code=2)
