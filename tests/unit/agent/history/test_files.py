# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The history of a simulated node: what it holds, after restarts, damage, and on a full disk."""

from dataclasses import replace
from pathlib import Path
import subprocess

import pytest

from controller.agent.history.files import DIRECTORY
from controller.agent.history.records import (
    MOMENTS,
    SNAPSHOTS,
    VERSION,
    Line,
    Start,
    Stop,
    encode,
)
from controller.agent.history.snapshots import entries
from controller.agent.recording import Entry, RecordingError, replay
from controller.core.model import Channel, Knob, KnobValue, Mode
from controller.core.units import NS_PER_SEC
from controller.demo.simulated_node import Plant, SimulatedNode
from controller.host.ring import Ring
from tests.support.loops.closed_loop import make_settings, with_sweet_point
from tests.support.loops.history_loop import (
    CONFIG,
    EPOCH_NS,
    RecordedLoop,
    read_lines,
    read_moments,
    records,
)
from tests.support.needs import needs_root

as_root = needs_root("to mount")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


def loop_on(data_dir: Path, mode: Mode = Mode.ENFORCE) -> RecordedLoop[SimulatedNode]:
    node = SimulatedNode(3, wants=(1.2, 0.5))
    return RecordedLoop(node, make_settings(mode=mode), data_dir)


def test_every_write_verdict_and_demand_is_in_a_moment(data_dir: Path) -> None:
    loop = loop_on(data_dir)
    plans = loop.run(60)
    loop.stop()
    moments = read_moments(data_dir)
    assert [each for moment in moments for each in moment.verdicts] == [
        each for plan in plans for each in plan.verdicts
    ]
    last = {(a.target, a.knob): a.value for plan in plans for a in plan.actions}
    assert {(w.target, w.knob): w.value for m in moments for w in m.writes} == last
    assert moments[-1].demands == plans[-1].demands
    squeezed = [m for m in moments if m.demands[0].applied > 0]
    assert len(squeezed) > 30
    (cause,) = squeezed[5].causes
    assert cause.be_share == pytest.approx(sum(each.share for each in cause.culprits), rel=1e-6)
    assert cause.culprits[0].cgroup == loop.node.best_effort[0].cgroup
    assert {use.cgroup for use in squeezed[5].uses} == {w.cgroup for w in loop.node.best_effort}
    assert all(use.cpus <= (use.granted or 9) * 1.05 for use in squeezed[-1].uses)
    first, *_, end = records(data_dir)
    assert isinstance(first, Start) and first.workloads == loop.workloads
    assert isinstance(end, Stop)
    lines = [each for each in read_lines(data_dir) if isinstance(each, Line)]
    assert lines[-1].wall_ns == EPOCH_NS + 60 * 10**9


def test_what_came_too_early_for_a_moment_is_written_at_the_end(data_dir: Path) -> None:
    loop = loop_on(data_dir)
    loop.run(2.2)  # the last moment was made 0.2 s ago, and one is made each second
    loop.anew = True
    loop.step()
    assert loop.latest is not None
    loop.files.write(loop.latest)
    loop.files.close(None, loop.now_ns)
    assert read_moments(data_dir)[-1].anew


def test_in_observe_mode_the_cut_is_what_enforcing_would_have_taken(data_dir: Path) -> None:
    loop = loop_on(data_dir, Mode.OBSERVE)
    loop.run(60)
    loop.stop()
    moment = read_moments(data_dir)[-1]
    assert all(write.held for each in read_moments(data_dir) for write in each.writes)
    granted = {use.cgroup: (use.cpus, use.granted) for use in moment.uses}
    assert moment.be_use_cpus == pytest.approx(1.7, rel=0.05)
    assert moment.cut_cpus == pytest.approx(
        sum(used - quota for used, quota in granted.values() if quota is not None), rel=1e-2
    )
    assert moment.cut_cpus > 1


def test_the_cut_counts_the_quota_of_the_common_parent(data_dir: Path) -> None:
    plant = Plant(cpus=16, p99_at_cpus=0.05, noise=0.0)
    node = SimulatedNode(1, plant, wants=[0.04] * 400)
    node.join_parent()
    loop = RecordedLoop(node, make_settings(cpus=16, mode=Mode.OBSERVE), data_dir)
    loop.run(15)
    loop.stop()
    moment = read_moments(data_dir)[-1]
    # Their own quotas leave 0.4 CPUs, that of the parent 2 % of 16.
    assert moment.be_use_cpus is not None
    assert moment.cut_cpus == pytest.approx(moment.be_use_cpus - 0.32, abs=0.01)


@pytest.mark.parametrize("mode", Mode)
def test_what_a_workload_leaves_is_forgotten(data_dir: Path, mode: Mode) -> None:
    loop = loop_on(data_dir, mode)
    loop.run(20)
    builder = loop.files._builder
    assert {each.target.path for each in builder.held} == {"/batch-0", "/batch-1"}
    loop.node.leave(0)
    loop.run(5)
    assert {each.target.path for each in builder.held} == {"/batch-1"}
    assert {place.id for place, _ in builder._held} == {each.target.id for each in builder.held}


def test_a_quiet_node_has_a_line_a_minute(data_dir: Path) -> None:
    node = SimulatedNode(3, wants=())
    loop = RecordedLoop(node, make_settings(), data_dir)
    loop.run(600)
    assert 9 <= len(read_moments(data_dir)) <= 12
    # The page of a young agent has more.
    assert len(loop.files.hours.copy()[0]) > 200


def test_the_page_of_a_young_agent_becomes_that_of_hours(data_dir: Path) -> None:
    loop = RecordedLoop(SimulatedNode(3, wants=()), make_settings(), data_dir)
    hours = loop.files.hours
    loop.run(100)
    assert hours.width_ns < NS_PER_SEC
    assert [each.uses for each in hours.copy()[0][2:]].count(0) == 0
    loop.run(300)
    assert NS_PER_SEC < hours.width_ns < 2 * NS_PER_SEC
    assert len(hours.copy()[0]) <= 360


def test_a_foreign_value_is_named_with_ours(data_dir: Path) -> None:
    loop = loop_on(data_dir)
    loop.run(20)
    ours = loop.node.value(loop.node.best_effort[0], Knob.CPU_QUOTA)
    foreign = KnobValue("70000 100000 0")
    loop.node.write(loop.node.best_effort[0], Knob.CPU_QUOTA, foreign)
    loop.run(20)
    loop.stop()
    (found,) = (each for moment in read_moments(data_dir) for each in moment.foreign)
    assert (found.ours, found.value, found.target.path) == (ours, foreign, "/batch-0")


def test_refused_writes_are_named(data_dir: Path) -> None:
    loop = loop_on(data_dir)
    loop.node.refused = {(loop.node.best_effort[0].cgroup.id, Knob.CPU_QUOTA)}
    loop.run(20)
    loop.stop()
    refused = [each for moment in read_moments(data_dir) for each in moment.refused]
    assert refused and {each.action.target.path for each in refused} == {"/batch-0"}
    held = {w.target.path for m in read_moments(data_dir) for w in m.writes if w.held}
    assert held == {"/batch-1"}


def test_runs_follow_one_another(data_dir: Path) -> None:
    loop = loop_on(data_dir)
    loop.run(30)
    loop.stop()
    loop.tick += 100
    loop.start()
    loop.run(70)  # killed: no Stop
    loop.tick += 100
    loop.start()
    loop.run(30)
    loop.anew = True  # an abandoned tick
    loop.run(30)
    loop.stop()
    found = [
        "start" if isinstance(each, Start) else "stop"
        for each in records(data_dir)
        if isinstance(each, Stop) or (isinstance(each, Start) and each.new_run)
    ]
    assert found == ["start", "stop", "start", "start", "stop"]
    assert sum(each.anew for each in read_moments(data_dir)) == 1
    # Each run, and what follows the abandoned tick, has a planner of its own.
    read = list(entries(read_lines(data_dir, SNAPSHOTS)))
    assert sum(each.anew for each in read) == 4


def test_a_replay_of_the_snapshots_judges_another_sweet_point(data_dir: Path) -> None:
    loop = loop_on(data_dir)
    loop.run(300)
    loop.stop()
    read = list(entries(read_lines(data_dir, SNAPSHOTS)))
    assert len(read) == pytest.approx(150, abs=5)
    # The complete entries are those of the node: nothing is lost by writing changes only.
    snapshot = read[-1].snapshot
    assert {each.cgroup for each in snapshot.workloads} == {w.cgroup for w in loop.workloads}
    assert snapshot.workloads[0].oncpu_ns is not None
    assert all(each.original is None for each in snapshot.knobs)
    assert {each.value for each in snapshot.knobs} == {"max 100000 0", "0 1024"}
    latest = replay_demands(read, 2e6)
    generous = replay_demands(read, 1e9)
    strict = replay_demands(read, 1e5)
    assert generous == 0
    assert 0 < latest <= strict


def replay_demands(read: list[Entry], sweet_point_ns: float) -> float:
    """Return the mean demand on cpu that a replay with this sweet point has."""
    settings = with_sweet_point(make_settings(mode=Mode.OBSERVE), sweet_point_ns)
    plans = [plan for _, plan in replay(iter(read), settings)]
    demands = [d.applied for plan in plans for d in plan.demands if d.channel is Channel.CPU]
    return sum(demands) / len(demands)


def test_snapshots_without_a_workload_that_left(data_dir: Path) -> None:
    loop = loop_on(data_dir)
    loop.run(20)
    loop.node.leave(0)
    loop.run(20)
    loop.stop()
    last = list(entries(read_lines(data_dir, SNAPSHOTS)))[-1]
    assert {each.cgroup for each in last.snapshot.workloads} == {w.cgroup for w in loop.workloads}
    assert {reading.target.path for reading in last.snapshot.knobs} == {"/batch-1"}
    left = [each.workloads for each in read_moments(data_dir) if each.workloads is not None]
    assert [len(each) for each in left] == [3, 2]


def test_damage_costs_a_part_only(data_dir: Path) -> None:
    loop = loop_on(data_dir)
    loop.run(300)
    loop.stop()
    for file in (data_dir / DIRECTORY).iterdir():
        data = bytearray(file.read_bytes())
        middle = len(data) // 2
        data[middle : middle + 40] = bytes(40)
        file.write_bytes(data)
    assert len(read_moments(data_dir)) > 150
    read = list(entries(read_lines(data_dir, SNAPSHOTS)))
    assert len(read) > 60
    assert len(list(replay(iter(read)))) == len(read)
    # The writer goes on after the damage.
    loop.start()
    loop.run(60)
    loop.stop()
    assert isinstance(records(data_dir)[-1], Stop)


def test_a_newer_version_is_kept_and_said(data_dir: Path) -> None:
    loop = loop_on(data_dir)
    loop.run(30)
    loop.stop()
    before = len(read_moments(data_dir))
    ring = Ring(data_dir / DIRECTORY, MOMENTS, 64 << 20, lambda: b"")
    newer = Start(version=VERSION + 1, boot_id="b", mode=Mode.OBSERVE, new_run=True)
    line = encode(EPOCH_NS, newer)
    ring.append(line + b'{"wall_ns":1,"moment":{"in":"an unknown form"}}\n' + line)
    loop.start()
    loop.run(30)
    loop.stop()
    texts = [each for each in read_lines(data_dir) if isinstance(each, str)]
    assert texts == ["written by a newer sweetpoint (version 2 of the format)"]
    assert len(read_moments(data_dir)) > before
    (file,) = (data_dir / DIRECTORY).glob("moments-*")
    assert line in subprocess.run(["zcat", file], capture_output=True, check=True).stdout


@as_root
def test_a_run_whose_first_block_is_lost_has_its_start_later(small_disk: Path) -> None:
    data_dir = small_disk / "data"
    loop = loop_on(data_dir)
    loop.run(70)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    loop.start()  # the agent before was killed
    loop.run(150)
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    loop.run(20)
    loop.stop()
    for stream in (MOMENTS, SNAPSHOTS):
        runs = [each for each in records(data_dir, stream) if isinstance(each, Start)]
        assert [each.new_run for each in runs].count(True) == 2
    starts = [each for each in records(data_dir) if isinstance(each, Start) and each.new_run]
    assert starts[1].workloads == loop.workloads


def test_without_snapshots_there_is_no_replay(data_dir: Path) -> None:
    with pytest.raises(RecordingError, match="no snapshots"):
        list(entries(["damaged"]))


@as_root
@pytest.mark.parametrize("obstacle", ["full", "read-only"])
def test_without_space_the_loop_goes_on(
    small_disk: Path, obstacle: str, caplog: pytest.LogCaptureFixture
) -> None:
    loop = loop_on(small_disk / "data")
    loop.run(20)
    before = len(read_moments(small_disk / "data"))
    ballast = small_disk / "ballast"
    if obstacle == "full":
        with pytest.raises(OSError, match="No space"), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    else:
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    plans = loop.run(120)
    assert plans[-1].demands[0].applied > 0
    assert loop.files.moments.lost > 50
    assert loop.files.snapshots.lost > 20
    assert "the history cannot be written" in loop.files.problem
    # Not for each of a dozen lost blocks, but again after a small one that found room.
    assert 1 <= len(caplog.records) <= 4
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    ballast.unlink(missing_ok=True)
    loop.run(70)
    loop.stop()
    assert loop.files.problem == ""
    assert len(read_moments(small_disk / "data")) > before + 50
    assert not [each for each in read_lines(small_disk / "data") if isinstance(each, str)]


def test_snapshots_of_a_boot_before_this_one(data_dir: Path) -> None:
    loop = loop_on(data_dir)
    loop.run(70)
    loop.tick = 0  # the clock starts again
    loop.node = SimulatedNode(4, wants=(1.2, 0.5))
    loop.start()
    loop.run(30)
    loop.stop()
    read = list(entries(read_lines(data_dir, SNAPSHOTS)))
    assert sum(each.anew for each in read) == 2
    assert len(list(replay(iter(read)))) == len(read)


def test_names_that_are_not_utf8(data_dir: Path) -> None:
    loop = loop_on(data_dir)
    for each in (loop.node.best_effort, loop.node.sensitive):
        each[0] = each[0]._replace(name="\udcff\\ \x1b[2J")
    loop.workloads = ()
    loop.run(20)
    loop.stop()
    assert not [each for each in read_lines(data_dir) if isinstance(each, str)]
    last = [each for each in read_moments(data_dir) if each.workloads][-1].workloads
    assert last is not None
    assert "\x1b[2J" in last[0].name


def test_the_space_is_bounded(data_dir: Path) -> None:
    node = SimulatedNode(3, wants=(1.2, 0.5))
    loop = RecordedLoop(node, make_settings(), data_dir, replace(CONFIG, max_bytes=100_000))
    loop.run(900)
    loop.stop()
    files = list((data_dir / DIRECTORY).iterdir())
    assert 50_000 < sum(each.stat().st_size for each in files) <= 100_000
    read = list(entries(read_lines(data_dir, SNAPSHOTS)))
    assert read[0].snapshot.time_ns > 60 * 10**9
    # The oldest file begins with what a reader must know.
    head = records(data_dir)[0]
    assert isinstance(head, Start) and not head.new_run
    assert len(head.workloads) == 3
    assert {write.knob for write in head.writes} == {Knob.CPU_QUOTA}
