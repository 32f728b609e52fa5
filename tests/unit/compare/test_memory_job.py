# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A job that cannot be kept running: its block has too little load, so it is no block."""

from pathlib import Path
import threading
from typing import cast

import pytest

from controller.demo.cgroups import DemoError
from tests.compare.memory.job import HOG, Job
from tests.compare.memory.node import MemoryNode
from tests.support.waiting import DEADLINE_S


class NoNode:
    """A node whose cgroups nothing can join; ``asked``: something tried to."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def join(self, name: str, score: int) -> None:
        self.asked.set()
        raise DemoError(f"{name}: {score}")


def test_the_end_says_that_it_was_not_kept_running(tmp_path: Path) -> None:
    node = NoNode()
    job = Job(cast("MemoryNode", node), tmp_path, HOG, "seed", ["one"], tmp_path / "none")
    job.begin()
    assert node.asked.wait(DEADLINE_S)
    with pytest.raises(DemoError, match="one: 1000"):
        job.end()


def test_one_that_never_began_has_nothing_to_say(tmp_path: Path) -> None:
    Job(cast("MemoryNode", NoNode()), tmp_path, HOG, "seed", ["one"], tmp_path / "none").end()
