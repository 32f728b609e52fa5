# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Reading of the history: files that are too old are left out."""

import os
from pathlib import Path

from controller.agent.history.files import DIRECTORY
from controller.agent.history.reader import HistoryReader
from controller.agent.history.records import SNAPSHOTS, Line, Start
from controller.agent.recording import Entry
from controller.core.model import Mode
from controller.demo.simulated_node import SimulatedNode
from tests.support.loops.closed_loop import make_settings
from tests.support.loops.history_loop import RecordedLoop


def test_files_that_were_written_before_are_left_out(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    loop = RecordedLoop(SimulatedNode(3, wants=()), make_settings(mode=Mode.OBSERVE), data_dir)
    loop.run(10)
    loop.stop()
    (file,) = (data_dir / DIRECTORY).glob(f"{SNAPSHOTS}*")
    os.utime(file, (1000, 1000))
    lines = list(HistoryReader(data_dir, SNAPSHOTS).lines(since_s=999.0))
    assert {type(each.record) for each in lines if isinstance(each, Line)} == {Start, Entry}
    reader = HistoryReader(data_dir, SNAPSHOTS)
    assert not list(reader.lines(since_s=1001.0))
    assert (reader.problems, reader.unreadable) == ([], 0)
