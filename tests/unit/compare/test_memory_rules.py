# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What other programs do where memory is short, with their own defaults, and what a node shows."""

from pathlib import Path

import pytest

from controller.demo.cgroups import DemoCgroups
from tests.compare.memory.blocks import MIXES, grown_mib, service_score
from tests.compare.memory.job import Job
from tests.compare.memory.node import BATCH, CAPACITY_MIB, MIB, NODE, MemoryNode, Use
from tests.compare.memory.policies import POLICIES
from tests.compare.memory.rules import (
    katalyst_limit,
    koordinator_release,
    koordinator_victims,
    kubelet_is_short,
    kubelet_victim,
)

GIB = 1 << 30
# Rows of v1 before those with the prefix are of the cgroup without the ones below it.
STAT = """\
rss 4096
inactive_file 4096
active_file 4096
workingset_refault_anon 1
workingset_refault_file 1
total_rss 300
total_inactive_file 30
total_active_file 50
total_workingset_refault_anon 2
total_workingset_refault_file 40
"""


def test_kubelet_evicts_below_100_mib_available() -> None:
    assert not kubelet_is_short(2 * GIB, 2 * GIB - 100 * MIB)
    assert kubelet_is_short(2 * GIB, 2 * GIB - 100 * MIB + 1)


def test_kubelet_takes_the_pod_that_is_most_above_its_request() -> None:
    assert kubelet_victim({"one": 30, "two": 50, "three": 40}) == "two"
    assert kubelet_victim({}) is None


def test_koordinator_frees_from_70_down_to_68_percent() -> None:
    assert koordinator_release(100 * GIB, 70 * GIB - 1) == 0
    assert koordinator_release(100 * GIB, 70 * GIB) == 2 * GIB
    # Its percentages are whole numbers.
    assert koordinator_release(100 * GIB, 76 * GIB - 1) == 7 * GIB
    assert koordinator_release(100 * GIB, 80 * GIB, 60) == 22 * GIB


def test_koordinator_kills_the_largest_until_enough_is_free() -> None:
    pods = {"one": 2, "two": 5, "three": 3}
    assert koordinator_victims(5, pods) == ["two"]
    assert koordinator_victims(6, pods) == ["two", "three"]
    assert koordinator_victims(99, pods) == ["two", "three", "one"]
    assert koordinator_victims(0, pods) == []


def test_katalyst_leaves_best_effort_work_what_is_free_above_the_watermark() -> None:
    assert katalyst_limit(10 * GIB, 20 * GIB, 4 * GIB) == 26 * GIB
    assert katalyst_limit(10 * GIB, 3 * GIB, 4 * GIB) == 10 * GIB


@pytest.mark.parametrize(
    ("request_mib", "capacity_mib", "score"),
    [(0, 640, 999), (100, 640, 844), (440, 640, 313), (320, 640, 500), (640, 640, 3)],
)
def test_kubelets_score_of_a_service(request_mib: int, capacity_mib: int, score: int) -> None:
    assert service_score(request_mib, capacity_mib) == score


def test_the_service_grows_in_the_second_third() -> None:
    mix = next(iter(MIXES.values()))
    held = [grown_mib(mix, ratio) for ratio in (0, 1 / 3, 0.5, 2 / 3, 1)]
    assert held == pytest.approx([200, 200, 300, 400, 400])


def test_use_on_v1_is_of_the_whole_tree() -> None:
    use = Use(500, STAT)
    assert (use.working_set_bytes, use.needed_bytes, use.refaults) == (470, 420, 42)


def test_use_on_v2() -> None:
    use = Use(500, STAT.replace("total_", "").partition("rss 300\n")[2] + "anon 300\n")
    assert (use.working_set_bytes, use.needed_bytes, use.refaults) == (470, 420, 42)


def test_katalyst_writes_the_limit_of_all_pods(tmp_path: Path) -> None:
    cgroups = DemoCgroups(cpu_mount=tmp_path, cpuacct_mount=None, version="v1", tag="t")
    node = MemoryNode(cgroups, tmp_path, "v1")
    for name, used_mib in ((NODE, 540), (BATCH, 200)):
        folder = tmp_path / cgroups.path[1:] / name
        folder.mkdir(parents=True)
        (folder / "memory.usage_in_bytes").write_text(str(used_mib * MIB))
        (folder / "memory.stat").write_text(STAT)
    limit = tmp_path / cgroups.path[1:] / BATCH / "memory.limit_in_bytes"
    limit.write_text("")
    make = POLICIES["katalyst"].rule
    assert make is not None
    make(node, Job(node, tmp_path, "hog", "", (), tmp_path)).step()
    # 200 in use, 100 free, of which a sixteenth of the node is not given away.
    assert int(limit.read_text()) == (200 + 100 - CAPACITY_MIB // 16) * MIB
