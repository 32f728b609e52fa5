# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The disk probe and an agent that limits disks on cgroup v2.

The tests are those of ``tests/kernel``, repeated in the guest.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.host.facts import CgroupLayout
from tests.kernel import test_agent_disks as agent
from tests.kernel import test_disk_probe as probe
from tests.kernel.disks import disk_at
from tests.support.cgroups import remove_cgroup

pytestmark = pytest.mark.vm

readers = probe.readers


@pytest.fixture
def site(
    cgroup_layout: CgroupLayout, cgroup_root: Path, tmp_path: Path
) -> Iterator[agent.DiskSite]:
    """The site with the slow disks of the emulator (tools/test-kernel), which an agent finds."""
    disks = [disk_at("/dev/vda"), disk_at("/dev/vdb")]
    site = agent.DiskSite(cgroup_root, cgroup_layout, tmp_path, disks, find=True)
    yield site
    remove_cgroup(site.below)


def test_reads_are_counted_one_by_one(readers: probe.Readers) -> None:
    probe.test_reads_are_counted_one_by_one_and_a_service_alone_waits_for_nobody(readers)


def test_the_one_who_uses_the_same_disk_inflicts(readers: probe.Readers) -> None:
    probe.test_the_one_who_uses_the_same_disk_inflicts_and_not_the_user_of_another(readers)


def test_cgroups_below_a_workload_belong_to_it(readers: probe.Readers) -> None:
    probe.test_cgroups_below_a_workload_belong_to_it_and_others_to_none(readers)


def test_a_cgroup_that_becomes_a_workload_is_counted(readers: probe.Readers) -> None:
    probe.test_a_cgroup_that_becomes_a_workload_is_counted_from_then_on(readers)


@pytest.mark.soak  # an agent takes a minute to start in the guest
@pytest.mark.usefixtures("agent_programs")
def test_only_a_job_that_keeps_the_same_disk_busy_is_limited(site: agent.DiskSite) -> None:
    # A guardian takes the time for a hang.
    agent.check(site, "--no-guardian")
