# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The kernel tells that a service waits more than it accepts, before a look is due."""

from collections import Counter
import contextlib
import os
import select

import pytest

from controller.core.looks import Quiet, TickReason, WaitLimit
from controller.core.model import CgroupId
from controller.core.units import NS_PER_SEC
from controller.host.facts import possible_cpus
from controller.probes.sched import SchedProbe
from controller.probes.sched_wake import WaitAlarm, no_ring_buffer
from tests.kernel.agent import AgentRun, Site
from tests.kernel.loads import Load, loads
from tests.kernel.looking import Looking
from tests.kernel.overload import CPU, outweigh
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel

SWEET_NS = 100e3
# Why a service that begins to wait gets a tick.
REASONS = Counter(woken=1, waits=1, near=1, active=1)
MESSAGE_BYTES = 16  # in the ring, with its header


class Watch:
    """The waits of the service and of a job below ``looking``, and what the kernel tells."""

    def __init__(self, looking: Looking, site: Site) -> None:
        outweigh(site.root, 200)
        outweigh(site.root / "batch")
        eventually("quiet", looking.is_quiet)
        sched = looking.node.sampler.sched
        assert sched is not None and sched.alarm is not None
        self.looking, self.sched, self.alarm = looking, sched, sched.alarm
        by_name = {each.name: each.cgroup for each in looking.node.workloads}
        self.service = by_name["web"]
        self.job = next(cgroup for name, cgroup in by_name.items() if "one" in name)
        self.loads = [Load(site.service, "bursts", CPU), Load(site.batch[0], "hog", CPU)]

    def tick(self, *limits: WaitLimit) -> None:
        self.looking.waits = limits
        self.looking.tick()
        self.looking.looks.arm()

    @property
    def told(self) -> bool:
        return is_readable(self.alarm)

    @property
    def messages(self) -> int:
        """How many the kernel has sent."""
        return int(self.alarm._written[0]) // MESSAGE_BYTES

    def waited(self, cgroup: CgroupId, least: int) -> None:
        """Wait until *cgroup* has as many waits more; the probe is not polled."""
        (slot,) = self.sched.slots_of([cgroup])
        before = int(self.sched._accounts[slot, :, 3].sum())
        eventually("waits", lambda: self.sched._accounts[slot, :, 3].sum() - before >= least)


def is_readable(alarm: WaitAlarm) -> bool:
    poll = select.poll()
    poll.register(alarm.fd, select.POLLIN)
    return bool(poll.poll(0))


def limit(cgroup: CgroupId, sweet_ns: float = SWEET_NS, *, by_time: bool = False) -> WaitLimit:
    return WaitLimit(cgroup, sweet_ns, 0.005, NS_PER_SEC, by_time)


@pytest.fixture
def watch(looking: Looking, site: Site) -> Watch:
    return Watch(looking, site)


def test_the_kernel_tells_that_a_service_waits(watch: Watch) -> None:
    with loads(watch.loads) as running:
        watch.tick(limit(watch.service))
        assert not watch.told
        running.work_until("a message", lambda: watch.told)
    assert watch.looking.reason(woken=True) is TickReason.WOKEN
    assert not watch.told


@pytest.mark.thorough
def test_each_due_moment_lets_the_kernel_tell_once(watch: Watch) -> None:
    with loads(watch.loads) as running:
        watch.tick(limit(watch.service, by_time=True))
        running.start()
        for number in range(1, 6):
            eventually("a message", lambda: watch.told)
            watch.waited(watch.service, 20)
            assert watch.messages == number
            assert watch.looking.reason(woken=True) is TickReason.WOKEN
            watch.waited(watch.service, 20)
            assert watch.messages == number
            watch.looking.looks.arm()
        running.stop()


@pytest.mark.thorough
def test_jobs_that_wait_for_each_other_cause_no_message(watch: Watch, site: Site) -> None:
    job, other = site.batch
    kinds = [*[(job, "light")] * 4, *[(job, "bursts")] * 4, (job, "hog"), (other, "hog")]
    watch.tick(limit(watch.service), limit(watch.service, by_time=True))
    with loads([Load(cgroup, kind, CPU) for cgroup, kind in kinds]) as running:
        running.start()
        watch.waited(watch.job, 500)
        running.stop()
    assert (watch.told, watch.alarm.is_armed, watch.messages) == (False, True, 0)


@pytest.mark.thorough
def test_a_service_within_its_sweet_points_causes_no_message(watch: Watch) -> None:
    """The kernel compares with two sweet points at most, and with none of a tick before."""
    with loads(watch.loads) as running:
        watch.tick(limit(watch.service))
        far = NS_PER_SEC * 100.0
        watch.tick(limit(watch.service, far), limit(watch.service, 2 * far), limit(watch.service))
        running.start()
        watch.waited(watch.service, 100)
        assert not watch.told
        watch.tick(limit(watch.service, far), limit(watch.service))
        eventually("a message", lambda: watch.told)
        running.stop()


@pytest.mark.thorough
def test_no_message_while_a_tick_is_needed_anyway(watch: Watch) -> None:
    with loads(watch.loads) as running:
        watch.tick(limit(watch.service))
        watch.looking.looks.expect(TickReason.ACTIVE)
        running.work_until("a message", lambda: watch.told)
        assert watch.looking.reason(woken=True) is None
        watch.looking.looks.arm()
        assert not watch.alarm.is_armed
    assert watch.looking.reason() is TickReason.ACTIVE


@pytest.mark.thorough
def test_without_a_ring_buffer_there_are_looks_only() -> None:
    probe = SchedProbe(cpus=max(possible_cpus()) + 1, wake=False)
    assert (probe.alarm, probe.no_alarm) == (None, "not requested")
    probe.arm(Quiet(None, NS_PER_SEC))
    assert not probe.waits_more(Quiet(None, NS_PER_SEC))
    probe.close()
    assert no_ring_buffer() == ""
    pid = os.fork()
    if pid == 0:  # without a right to make maps
        with contextlib.suppress(BaseException):
            os.setuid(65534)
            os._exit(0 if "Operation not permitted" in no_ring_buffer() else 1)
        os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.thorough
def test_a_tick_comes_before_it_is_due(site: Site) -> None:
    """Of a service that waits for another one, which no squeeze ends."""
    site.tighten()
    site.write("tick: 400ms\nprofiles: [tight.yaml]\n", mode="observe")
    outweigh(site.root, 200)
    wanted = [Load(site.service, "bursts", CPU), Load(site.bystander, "hog", CPU)]
    with loads(wanted) as running, AgentRun(site) as agent:
        agent.ready()

        def looks() -> Counter[str]:
            return Counter(agent.status()["tick"]["looks"])

        def is_quiet() -> bool:
            before = looks()
            eventually("two looks", lambda: (looks() - before).total() >= 2)
            return looks() - before <= Counter(quiet=99, interval=99, request=99)

        def is_woken() -> bool:
            """Start the service; a tick may be due before it has waited for long enough."""
            eventually("quiet", is_quiet)
            before = looks()
            running.start()
            found = eventually("a tick for it", lambda: (looks() - before) & REASONS)
            running.stop()
            return "woken" in found

        eventually("a tick for the message", is_woken)
        eventually("quiet", is_quiet)  # what the service has caused until its end is counted
        found = looks()
        assert found["woken"] + found.get("unfounded", 0) < sum(found.values()) / 2
        assert agent.series("sweetpoint_looks_total")["woken",] == found["woken"]
        assert agent.stop() == 0
