# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Parts of several tests in the guest: a probe, resctrl, and an executor."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from actuators.executor import Executor
from controller.host.facts import CgroupLayout, possible_cpus
from controller.probes.disk import DiskProbe
from controller.probes.net import NetProbe
from controller.probes.sched import SchedProbe
from tests.kernel.knobs import executor
from tests.kernel.test_counters import counting
from tests.vm.guest.resctrl import mounted


@pytest.fixture(scope="module")
def counting_probe() -> Iterator[SchedProbe]:
    """The sched probe with counters; its program is compiled once, which takes fifteen seconds."""
    loaded = counting()
    assert loaded.untyped == ""
    yield loaded
    loaded.close()


@pytest.fixture(scope="session")
def agent_programs(cgroup_layout: CgroupLayout) -> None:
    """What agents load, compiled for them: they give their compiler a minute, too little here."""
    cpus = max(possible_cpus()) + 1
    SchedProbe(cpus=cpus).close()
    NetProbe(cgroup_layout, cpus=cpus).close()
    DiskProbe(cgroup_layout).close()


@pytest.fixture
def resctrl() -> Iterator[Path]:
    """The mount point of resctrl, mounted by another program."""
    with mounted() as point:
        yield point


@pytest.fixture
def agent(cgroup_layout: CgroupLayout, tmp_path: Path) -> Executor:
    """The executor of an agent."""
    return executor(cgroup_layout, tmp_path)
