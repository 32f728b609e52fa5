# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Accuracy of the probes on pure cgroup v2 and another kernel version.

The tests are those of ``tests/kernel``, repeated in the guest.
"""

from collections.abc import Iterator
import os
from pathlib import Path

import pytest

from controller.host.facts import CgroupLayout, possible_cpus
from controller.probes.counters import choose_sources
from controller.probes.sched import SchedProbe
from tests.kernel import test_counters as counters
from tests.kernel import test_net_probe as network
from tests.kernel import test_sched_probe as sched
from tests.kernel.groups import Groups
from tests.kernel.loads import Load, loads

pytestmark = pytest.mark.vm

CPU = sched.CPU

net, talk, namespaces = network.net, network.talk, network.namespaces


@pytest.fixture(scope="module")
def probe() -> Iterator[SchedProbe]:
    # Shared by all tests: compiling takes ten seconds in the guest.
    sources, reasons = choose_sources(counters.WANTED)
    assert reasons == {}
    loaded = SchedProbe(cpus=max(possible_cpus()) + 1, counters=sources)
    assert loaded.untyped == ""
    yield loaded
    loaded.close()


@pytest.fixture
def groups(cgroup_root: Path, cgroup_layout: CgroupLayout, probe: SchedProbe) -> Groups:
    return Groups(cgroup_root, cgroup_layout, probe)


def test_waits_agree_with_schedstat(probe: SchedProbe, groups: Groups) -> None:
    sched.test_pinned_tasks_agree_with_schedstat_within_one_percent(
        "service beside hogs", probe, groups
    )


def test_late_timers_show_that_an_emulated_cpu_stands_still(
    probe: SchedProbe, groups: Groups
) -> None:
    """The emulator runs one CPU after the other, which the kernel cannot know."""
    service, hog = groups.make("service", latency=True), groups.make("hog", latency=False)
    hogs = [Load(hog, "hog", cpu) for cpu in sorted(os.sched_getaffinity(0))]
    with loads([Load(service, "bursts", CPU), *hogs], seconds=3) as running:
        running.work()
        sample = groups.sample(probe.poll(), service)
    assert sample.wait_total_ns is not None and sample.wait_host_ns is not None
    print(f"host {sample.wait_host_ns / sample.wait_total_ns:.0%} of the wait")
    assert sample.wait_host_ns > 0.2 * sample.wait_total_ns


def test_blame_names_the_hog(probe: SchedProbe, groups: Groups) -> None:
    # Without sleepers: the cost of their wakeups is not negligible on this CPU.
    service, hog = groups.make("service", latency=True), groups.make("hog", latency=False)
    with loads([Load(service, "bursts", CPU), Load(hog, "hog", CPU)], seconds=3) as running:
        running.work()
        reading = probe.poll()
    inflicted_ns = groups.sample(reading, service).wait_inflicted_ns
    assert inflicted_ns is not None and inflicted_ns > 50_000_000
    assert groups.blame(reading, service, hog) >= 0.9 * inflicted_ns


def test_own_quota_is_waiting_but_not_inflicted(
    probe: SchedProbe, groups: Groups, cgroup_root: Path, cgroup_layout: CgroupLayout
) -> None:
    sched.test_own_quota_is_waiting_but_not_inflicted(
        probe, groups, cgroup_root, cgroup_layout, "service"
    )


def test_cpi_is_the_frequency_of_the_counter(
    probe: SchedProbe, cgroup_root: Path, cgroup_layout: CgroupLayout
) -> None:
    counters.test_cpi_is_the_frequency_of_the_counter(probe, cgroup_root, cgroup_layout)


def test_a_stream_over_veth_agrees_with_the_interface(
    net: network.Net, namespaces: tuple[str, str], talk: network.Start
) -> None:
    network.test_a_stream_over_veth_agrees_with_the_interface(net, talk, namespaces)
