# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Agents under the guardian that are killed by SIGKILL at random times, with odd original values.

Meanwhile the state directory becomes full or read-only, or a record becomes one of a newer version.
In every case the knobs are as before once a release or a start had nothing in its way.
"""

from contextlib import nullcontext
import os
from pathlib import Path
import random
import signal
import time

import pytest

from controller.agent.restore import release
from tests.kernel.guarded_run import Guarded, alive, guarded
from tests.kernel.knobs import dump, make_child, make_newer, set_quota, set_weight
from tests.kernel.state_dirs import tmpfs, unwritable
from tests.support.cgroups import remove_cgroup
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]


def odd_tree(root: Path, numbers: random.Random) -> None:
    """Make children of *root* with original values that no agent would set."""
    for name in ("a", "b", "c", "d"):
        child = make_child(root, name)
        quota_us = numbers.choice([None, None, numbers.randint(1_000, 999_999)])
        period_us = numbers.randint(1_000, 999_999)
        set_quota(child, quota_us, period_us, numbers.randint(0, (quota_us or 0) // 2))
        if name == "d":
            (child / "cpu.idle").write_text("1")
        else:
            set_weight(child, numbers.randint(2, 9_999))


def kill(program: Guarded, agent: int, victims: str, numbers: random.Random) -> None:
    """Kill what *victims* names, and wait until no process of *program* is left."""
    if victims == "agent":
        os.kill(agent, signal.SIGKILL)
        program.squeezed()
        time.sleep(numbers.uniform(0, 0.05))
        program.stop()
    elif victims == "guardian":
        os.kill(program.pid, signal.SIGKILL)
        program.end()
        eventually("the end of the agent", lambda: not alive(agent))
    elif victims == "both":
        program.kill_both(agent)
    else:  # during a restore, by the agent or by the guardian
        os.kill(agent, numbers.choice([signal.SIGTERM, signal.SIGKILL]))
        time.sleep(numbers.uniform(0, 0.02))
        program.kill_all()


def recover(state_dir: Path, root: Path, way: str) -> None:
    """Release, or start again with an agent that ends at once."""
    if way == "release":
        release(state_dir)
        return
    with guarded(state_dir, root, "nothing") as program:
        program.end()


def one_kill(state_dir: Path, root: Path, numbers: random.Random) -> str:
    """Kill an agent once, recover and compare; return what was done."""
    victims = numbers.choice(["agent", "guardian", "both", "both", "restore", "restore"])
    obstacle = numbers.choice(["", "", "full", "no inodes", "read-only", "newer", "newer"])
    way = numbers.choice(["release", "next start"])
    what = f"{victims} killed, {obstacle or 'nothing else'}, {way}"
    odd_tree(root, numbers)
    before = dump(root)
    cover = unwritable(state_dir, obstacle) if obstacle not in ("", "newer") else nullcontext()
    with guarded(state_dir, root, "steer") as program:
        agent = program.squeezed()
        time.sleep(numbers.uniform(0, 0.1))
        if victims == "agent" and obstacle == "read-only":
            victims = "guardian"  # with no record, the second agent squeezes nothing
        with cover:
            kill(program, agent, victims, numbers)
            # Not of the root, whose quota would forbid that of its children.
            records = sorted(
                path
                for path in (state_dir / "journal").glob("*.json")
                if f".{root.stat().st_ino}." not in path.name
            )
            if obstacle == "newer" and records:
                newer = make_newer(numbers.choice(records), in_place=numbers.random() < 0.5)
                data, during = newer.read_bytes(), dump(root)
                recover(state_dir, root, way)
                assert newer.read_bytes() == data, what
                left = {path for path in before if dump(root)[path] != before[path]}
                assert len({path.partition("/")[0] for path in left}) <= 1, (what, left)
                assert all(dump(root)[path] == during[path] for path in left), (what, left)
                make_newer(newer, undo=True)
            recover(state_dir, root, way)
            assert dump(root) == before, what
    assert release(state_dir) == 0, what
    assert dump(root) == before, what
    assert not list((state_dir / "journal").iterdir()), what
    return what


@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.soak)])
def test_random_kills(cgroup_root: Path, tmp_path: Path, count: int) -> None:
    seed = random.randrange(1 << 32)
    numbers = random.Random(seed)
    with tmpfs(tmp_path / "state") as state_dir:
        for number in range(count):
            root = make_child(cgroup_root, str(number))
            print(f"{number} of seed {seed}: {one_kill(state_dir, root, numbers)}")
            remove_cgroup(root)
