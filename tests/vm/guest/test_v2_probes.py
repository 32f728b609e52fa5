# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the probes count on pure cgroup v2 and another kernel version.

Most tests are those of ``tests/kernel``, repeated in the guest.
"""

from collections.abc import Callable, Collection
import contextlib
import os
from pathlib import Path
import time

import pytest

from controller.core.looks import TickReason
from controller.core.model import CgroupId, IndicatorName, QosClass, Workload
from controller.core.units import NS_PER_MS, NS_PER_SEC
from controller.host.facts import CgroupLayout
from controller.host.signal_wait import READABLE, SignalWait
from controller.probes.pressure_alarm import PressureAlarm
from controller.probes.psi import PressureMeter
from controller.probes.sched import SchedProbe
from tests.kernel import test_counters as counters
from tests.kernel import test_net_probe as network
from tests.kernel import test_sched_probe as sched
from tests.kernel.agent import Site
from tests.kernel.groups import Groups
from tests.kernel.loads import Load, loads
from tests.kernel.looking import Looking
from tests.kernel.overload import CPU
from tests.support.pressure_files import allowing
from tests.support.waiting import DEADLINE_S, eventually

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


class Pressed:
    """A service with triggers of 1 % in a window of *window_ns*."""

    def __init__(self, layout: CgroupLayout, service: Path, window_ns: int) -> None:
        service.mkdir()
        self.layout, self.service = layout, service
        self.told: list[str] = []
        self.alarm = PressureAlarm(layout.unified, self.told.append)
        self.points = {IndicatorName.PSI_CPU: 0.01, IndicatorName.PSI_MEMORY: 0.01}
        self.window_ns, self.armed = window_ns, 0
        self.follow()

    def follow(self) -> None:
        """Hand over the cgroup that the service has now."""
        path = f"/{self.service.relative_to(self.layout.mount)}"
        cgroup = CgroupId(self.layout.hierarchy, self.service.stat().st_ino)
        self.workload = Workload("web", cgroup, path, QosClass.LS, "web", "slow")
        self.alarm.set_workloads([self.workload])

    def arm(self) -> None:
        """Arm the alarm, a second after the last time for all that it knows."""
        self.armed += 1
        limits = allowing(self.points, self.workload.cgroup, window_ns=self.window_ns)
        self.alarm.arm(limits, self.armed * NS_PER_SEC)

    def wait(self) -> None:
        wait_for(self.alarm.fd, lambda _: self.alarm.hear())


def wait_for(fd: int | None, hear: Callable[[Collection[int]], None]) -> None:
    """Wait as the control thread does, until a message came, and take it."""
    with contextlib.closing(SignalWait(set())) as waits:
        far_ns = time.monotonic_ns() + round(DEADLINE_S * NS_PER_SEC)
        assert waits.until(far_ns, None, fd) == READABLE
        hear(waits.readable)


def monitors() -> int:
    """Return how many cgroups have triggers: each has a kernel thread (psi_trigger_create)."""
    count = 0
    for file in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            count += file.read_text() == "psimon\n"
    return count


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("window_ns", [500 * NS_PER_MS, 2 * NS_PER_SEC])
def test_pressure_of_a_service_is_told_and_read(
    cgroup_root: Path, cgroup_layout: CgroupLayout, window_ns: int
) -> None:
    before = monitors(), descriptors()
    pressed = Pressed(cgroup_layout, cgroup_root / "service", window_ns)
    pressed.arm()
    assert pressed.alarm.fd is not None
    assert (monitors(), pressed.told) == (before[0] + 1, [])
    meter = PressureMeter(cgroup_layout.unified)
    meter.set_workloads([pressed.workload])
    meter.poll(0, None)
    stalled_ns = meter.workloads[pressed.workload.cgroup].cpu
    assert stalled_ns is not None
    with loads([Load(pressed.service, "hog", CPU)] * 2) as running:
        running.start()
        for _ in range(2):  # once per window
            pressed.wait()
            assert pressed.alarm.take()
            assert pressed.alarm.fd is None
            pressed.arm()
        running.stop()
    meter.expire()
    meter.poll(1, None)
    now_ns = meter.workloads[pressed.workload.cgroup].cpu
    assert now_ns is not None and now_ns - stalled_ns >= window_ns // 100
    meter.close()
    pressed.alarm.close()
    assert (monitors(), descriptors()) == before


def test_a_cgroup_that_is_removed_with_its_triggers_tells_nothing(
    cgroup_root: Path, cgroup_layout: CgroupLayout
) -> None:
    before = monitors(), descriptors()
    pressed = Pressed(cgroup_layout, cgroup_root / "service", NS_PER_SEC)
    for _ in range(3):  # another cgroup of the same name
        pressed.arm()
        assert monitors() == before[0] + 1
        pressed.service.rmdir()
        pressed.wait()
        assert not pressed.alarm.take()
        pressed.arm()
        assert (pressed.alarm.fd, monitors()) == (None, before[0])
        pressed.service.mkdir()
        pressed.follow()
    pressed.alarm.close()
    assert (descriptors(), pressed.told) == (before[1], [])


def test_what_the_kernel_refuses_is_told(cgroup_root: Path, cgroup_layout: CgroupLayout) -> None:
    pressed = Pressed(cgroup_layout, cgroup_root / "service", NS_PER_SEC)
    for point in (0.0, 1.5):
        pressed.points = {IndicatorName.PSI_CPU: point}
        pressed.arm()
        assert pressed.told.pop() == "cpu.pressure: Invalid argument"
    (pressed.service / "cgroup.pressure").write_text("0")
    pressed.points = {IndicatorName.PSI_CPU: 0.1}
    pressed.arm()
    assert (pressed.alarm.fd, pressed.told) == (None, [])
    (pressed.service / "cgroup.pressure").write_text("1")
    pressed.follow()
    pressed.arm()
    assert pressed.alarm.fd is not None
    (pressed.service / "cgroup.pressure").write_text("0")
    pressed.wait()
    assert not pressed.alarm.take()
    pressed.alarm.close()


@pytest.mark.soak  # compiling three probes takes minutes in the guest
def test_pressure_of_a_service_makes_a_tick_that_reads_it(
    cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path
) -> None:
    others = monitors()
    site = Site(cgroup_root, cgroup_layout, tmp_path)
    looking = Looking(site)
    sampler = looking.node.sampler
    try:
        (web,) = (each.cgroup for each in looking.node.workloads if each.name == "web")
        looking.pressures = allowing({IndicatorName.PSI_CPU: 0.01}, web)
        eventually("quiet", looking.is_quiet)
        sampler._pressure._due_ns = 2**62  # nothing reads pressure once a second
        before = looking.tick()
        looking.looks.arm()
        with loads([Load(site.service, "hog", CPU)] * 2) as running:
            running.start()
            wait_for(looking.looks.alarms[1], looking.looks.hear)
            assert looking.reason(woken=True) is TickReason.PRESSURE
            after = looking.tick()
            running.stop()
        assert after.pressure_ns == after.time_ns != before.pressure_ns
        stalls_ns = [
            each.psi_cpu_some_ns
            for snapshot in (before, after)
            for each in snapshot.workloads
            if each.cgroup == web and each.psi_cpu_some_ns is not None
        ]
        assert len(stalls_ns) == 2 and stalls_ns[0] < stalls_ns[1]
        assert sampler.fallbacks.get("pressure_alarm") is None
    finally:
        looking.node.restore()
        looking.node.close()
    assert monitors() == others
