# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Waits timed with wakeup stamps, as on a kernel without sched_info, against /proc/PID/schedstat.

The running kernel has sched_info; the test removes it from a copy of the kernel's BTF.
"""

from collections.abc import Iterator
import os
from pathlib import Path

import pytest

from controller.host.facts import possible_cpus
from controller.probes.bpf.btf import Btf
from controller.probes.sched import SchedProbe
from tests.kernel.groups import Groups, Round
from tests.kernel.loads import Load, loads
from tests.kernel.steal import assert_agree
from tests.kernel.without import btf_without_sched_info

pytestmark = pytest.mark.kernel
thorough, timed = pytest.mark.thorough, pytest.mark.timed

CPU = max(os.sched_getaffinity(0))


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[SchedProbe]:
    btf = Btf(btf_without_sched_info(tmp_path))
    loaded = SchedProbe(cpus=max(possible_cpus()) + 1, btf=btf)
    yield loaded
    loaded.close()


PINNED = {
    "hogs on one CPU": [("a", "hog", CPU), ("b", "hog", CPU), ("b", "hog", CPU)],
    "sleepers on one CPU": [("a", "bursts", CPU)] * 4 + [("b", "hog", CPU)],
}
# sched_info restarts a wait at a migration; a stamp is kept.
MIGRATING = {"changing their CPU": [("a", "roam", -1), ("b", "roam", -1), ("b", "roam", -1)]}
MIXES = PINNED | MIGRATING


def mixed(mix: str, groups: Groups) -> tuple[list[Path], list[Load]]:
    """Make the cgroups of *mix*; return them and its loads."""
    cgroups = {name: groups.make(name, latency=name == "a") for name in "ab"}
    return [*cgroups.values()], [Load(cgroups[name], kind, cpu) for name, kind, cpu in MIXES[mix]]


@thorough
@pytest.mark.parametrize("mix", PINNED)
def test_waits_of_pinned_tasks_are_those_of_the_kernel(
    mix: str, probe: SchedProbe, groups: Groups
) -> None:
    cgroups, wanted = mixed(mix, groups)
    with loads(wanted) as running:
        groups.assert_agree(running, cgroups)


@thorough
@pytest.mark.parametrize("mix", MIGRATING)
def test_waits_of_migrating_tasks_are_counted(mix: str, groups: Groups) -> None:
    cgroups, wanted = mixed(mix, groups)
    waits = runs = 0

    def judge(each: Round) -> bool:
        nonlocal waits, runs
        for path in cgroups:
            assert 0 <= groups.gained(each, "waits", path) <= each.kernel[path].runs
            waits += groups.gained(each, "waits", path)
            runs += each.kernel[path].runs
        return True

    with loads(wanted) as running:
        groups.rounds(running, cgroups, judge)
    # Switches may be missed, and a wait may be too short for the clock.
    assert waits > runs / 2


@timed
@pytest.mark.parametrize("mix", MIXES)
def test_agrees_with_schedstat_within_one_percent(
    mix: str, probe: SchedProbe, groups: Groups
) -> None:
    cgroups, wanted = mixed(mix, groups)
    with loads(wanted, seconds=2) as running:
        assert_agree(groups, probe, running, cgroups)


# The whole path without sched_info, from the stamps to the reading.
def test_histogram_and_blame_are_the_same(probe: SchedProbe, groups: Groups) -> None:
    assert "sched_info" in probe.fallback
    quiet = groups.make("quiet", latency=False)
    reading, service, hog = groups.beside_hog(CPU, 100)
    assert groups.blame(reading, service, hog) > 0
    assert groups.blame(reading, service, quiet) == 0
