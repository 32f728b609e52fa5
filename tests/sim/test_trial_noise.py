# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the history of a node says about the differences of blocks without a trial."""

from pathlib import Path

import pytest

from controller.core.model import Mode
from controller.core.units import NS_PER_SEC
from controller.demo.simulated_node import SimulatedNode
from controller.trial.noise import block_differences
from tests.support.loops.closed_loop import make_settings
from tests.support.loops.history_loop import EPOCH_NS, RecordedLoop

BLOCK_S = 40


def run(data_dir: Path, mode: Mode, blocks: int) -> None:
    """Run blocks in turns: nothing happens in one, and two jobs begin in the next one."""
    loop = RecordedLoop(SimulatedNode(3, wants=(0.0, 0.0)), make_settings(mode=mode), data_dir)
    for number in range(blocks):
        loop.node.wants = [1.2, 0.5] if number % 2 else [0.0, 0.0]
        loop.run(BLOCK_S)
    loop.stop()


def differences(data_dir: Path, seconds: float) -> dict[str, list[float]]:
    until_ns = EPOCH_NS + round(seconds * NS_PER_SEC)
    return dict(block_differences(data_dir, EPOCH_NS, until_ns, BLOCK_S))


def test_blocks_that_follow_each_other_are_compared(tmp_path: Path) -> None:
    run(tmp_path, Mode.ENFORCE, 6)
    found = differences(tmp_path, 6 * BLOCK_S)
    assert [*found] == ["web-0"] and len(found["web-0"]) == 3
    assert all(-1.0 <= each < 0.0 for each in found["web-0"])
    # The sixth block is not complete, so the fifth one has nothing to be compared with.
    assert len(differences(tmp_path, 5.5 * BLOCK_S)["web-0"]) == 2


def test_a_time_of_observing_says_nothing(tmp_path: Path) -> None:
    run(tmp_path, Mode.OBSERVE, 4)
    assert differences(tmp_path, 4 * BLOCK_S) in ({}, {"web-0": []})


def test_without_a_history(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        differences(tmp_path / "none", 100.0)
