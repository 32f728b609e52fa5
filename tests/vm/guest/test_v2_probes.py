# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the probes count on pure cgroup v2 and another kernel version.

Most tests are those of ``tests/kernel``, repeated in the guest.
"""

import os
from pathlib import Path

import pytest

from controller.host.facts import CgroupLayout
from controller.probes.sched import SchedProbe
from tests.kernel import test_counters as counters
from tests.kernel import test_net_probe as network
from tests.kernel import test_sched_probe as sched
from tests.kernel.groups import Groups
from tests.kernel.loads import Load, loads
from tests.kernel.overload import CPU

pytestmark = pytest.mark.vm

net, talk = network.net, network.talk


@pytest.fixture
def groups(cgroup_root: Path, cgroup_layout: CgroupLayout, counting_probe: SchedProbe) -> Groups:
    return Groups(cgroup_root, cgroup_layout, counting_probe)


def test_waits_are_those_of_the_kernel(counting_probe: SchedProbe, groups: Groups) -> None:
    mix = "service beside hogs"
    sched.test_waits_of_pinned_tasks_are_those_of_the_kernel(mix, counting_probe, groups)


def test_blame_names_the_hog(counting_probe: SchedProbe, groups: Groups) -> None:
    sched.test_blame_names_the_hog_among_five(counting_probe, groups)


def test_own_quota_is_waiting_but_not_inflicted(
    counting_probe: SchedProbe, groups: Groups, cgroup_root: Path, cgroup_layout: CgroupLayout
) -> None:
    sched.test_own_quota_is_waiting_but_not_inflicted(
        counting_probe, groups, cgroup_root, cgroup_layout, "service"
    )


def test_a_workload_gets_the_switches_to_its_tasks(groups: Groups) -> None:
    counters.test_a_workload_gets_the_switches_to_its_tasks(groups)


@pytest.mark.timed
def test_cpi_is_the_frequency_of_the_counter(
    counting_probe: SchedProbe, cgroup_root: Path, cgroup_layout: CgroupLayout
) -> None:
    counters.test_cpi_is_the_frequency_of_the_counter(counting_probe, cgroup_root, cgroup_layout)


def beside_hogs(groups: Groups) -> tuple[Path, list[Load]]:
    """Make a service beside a hog on every CPU.

    The emulator runs one CPU after the other, which the kernel cannot know.
    """
    service, hog = groups.make("service", latency=True), groups.make("hog", latency=False)
    hogs = [Load(hog, "hog", cpu) for cpu in sorted(os.sched_getaffinity(0))]
    return service, [Load(service, "bursts", CPU), *hogs]


def test_late_timers_show_that_an_emulated_cpu_stands_still(groups: Groups) -> None:
    service, wanted = beside_hogs(groups)
    with loads(wanted) as running:
        running.work_until("a late timer", lambda: groups.counted(service).wait_host_ns)


@pytest.mark.timed
def test_a_fifth_of_the_wait_is_that_of_an_emulated_cpu(groups: Groups) -> None:
    service, wanted = beside_hogs(groups)
    with loads(wanted, seconds=3) as running:
        running.work()
        sample = groups.counted(service)
    assert sample.wait_total_ns is not None and sample.wait_host_ns is not None
    print(f"host {sample.wait_host_ns / sample.wait_total_ns:.0%} of the wait")
    assert sample.wait_host_ns > 0.2 * sample.wait_total_ns


def test_datagrams_are_counted_to_the_byte(net: network.Net, talk: network.Talk) -> None:
    network.test_datagrams_are_counted_to_the_byte_on_both_sides(net, talk)
