# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""After a restart the page shows the hours before it, from the files."""

from collections.abc import Iterable
from copy import copy
import os
from pathlib import Path
import shutil

import pytest

from controller.agent.history.files import DIRECTORY, HistoryFiles
from controller.agent.history.records import MOMENTS, VERSION, Start, encode
from controller.core.model import Mode
from controller.demo.simulated_node import SimulatedNode
from controller.host.ring import Ring
from controller.page.hours import Bucket, Hours
from tests.support.loops.closed_loop import make_settings
from tests.support.loops.history_loop import CONFIG, EPOCH_NS, RecordedLoop

S = 10**9


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RecordedLoop[SimulatedNode]:
    """A run of ten minutes with two incidents."""
    node = SimulatedNode(3, wants=(0.0, 0.0))
    data_dir = tmp_path_factory.mktemp("recorded") / "data"
    made = RecordedLoop(node, make_settings(mode=Mode.ENFORCE), data_dir)
    for wants in ([0.0, 0.0], [1.2, 0.5]) * 2:
        node.wants = wants
        made.run(150)
    made.stop()
    return made


@pytest.fixture
def loop(recorded: RecordedLoop[SimulatedNode], tmp_path: Path) -> RecordedLoop[SimulatedNode]:
    """The run, with a copy of its files."""
    copied = copy(recorded)
    copied.data_dir = shutil.copytree(recorded.data_dir, tmp_path / "data")
    return copied


def after(loop: RecordedLoop[SimulatedNode], later_ns: int = 0) -> Hours:
    """Return what the next run shows, which starts *later_ns* after the end of *loop*."""
    files = HistoryFiles(loop.data_dir, CONFIG, lambda time_ns: EPOCH_NS + time_ns)
    files.recall(loop.now_ns + later_ns)
    return files.hours


def minutes(buckets: Iterable[Bucket]) -> set[int]:
    return {each.began_ns // (60 * S) for each in buckets}


def test_the_hours_before_a_restart_are_shown(loop: RecordedLoop[SimulatedNode]) -> None:
    before, events = loop.files.hours.copy()
    found, again = after(loop).copy()
    assert len(minutes(before)) > 8
    assert minutes(found) == minutes(before)
    # Fewer moments are enough for what was.
    assert len(found) < len(before)
    assert again == events != []
    assert {key for each in found for key in each.demands} == {"cpu"}
    for one in found:
        assert one.shares.keys() <= {("web-0", "cpu")}
    squeezed = minutes(each for each in found if each.demands.get("cpu", 0.0) > 0.5)
    assert len(squeezed) >= 4
    assert {name for each in found for shares in each.shares.values() for name in shares} == {
        "batch-0",
        "batch-1",
    }


def test_only_the_last_hours_are_shown(loop: RecordedLoop[SimulatedNode]) -> None:
    six_hours_ns = 360 * 60 * S
    found, events = after(loop, six_hours_ns - 200 * S).copy()
    since_ns = EPOCH_NS + loop.now_ns - 200 * S
    assert found[0].began_ns >= since_ns - 60 * S
    assert len(minutes(found)) in (3, 4, 5)
    assert all(time_ns >= since_ns for time_ns, _ in events)
    # Names come from a line before that time.
    assert any("batch-0" in shares for each in found for shares in each.shares.values())
    assert after(loop, six_hours_ns + S).copy() == ([], [])


def test_files_that_were_written_before_are_not_read(loop: RecordedLoop[SimulatedNode]) -> None:
    (file,) = (loop.data_dir / DIRECTORY).glob(f"{MOMENTS}-*")
    os.utime(file, (0, 0))
    assert after(loop).copy() == ([], [])


def test_damage_and_newer_versions_are_left_out(loop: RecordedLoop[SimulatedNode]) -> None:
    (file,) = (loop.data_dir / DIRECTORY).glob(f"{MOMENTS}-*")
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    assert 2 < len(minutes(after(loop).copy()[0])) < 9
    start = Start(version=VERSION + 1, boot_id="x", mode=Mode.OBSERVE, new_run=True)
    ring = Ring(loop.data_dir / DIRECTORY, MOMENTS, 64 << 20, bytes)
    file.unlink()
    ring.append(encode(EPOCH_NS, start) + b'{"wall_ns":%d,"moment":{"what":1}}\n' % EPOCH_NS)
    assert after(loop).copy() == ([], [])


def test_without_a_history_there_is_nothing(tmp_path: Path) -> None:
    files = HistoryFiles(tmp_path / "none", CONFIG, lambda time_ns: time_ns)
    files.recall(10**18)
    assert files.hours.copy() == ([], [])
    assert not (tmp_path / "none").exists()
