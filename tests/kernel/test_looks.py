# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent leaves out ticks while nothing happens, and makes one as soon as a service suffers."""

from collections.abc import Iterator
import os
from pathlib import Path
import signal
import socket
import time

import pytest

from controller.agent.looks import FIGURE, Looks
from controller.agent.reload import ScanBudget
from controller.core.looks import TickReason
from controller.core.model import IndicatorName, Snapshot
from controller.core.units import NS_PER_SEC
from controller.host.pause_file import EVERYTHING, PauseEntry, change_pauses
from controller.host.signal_wait import READABLE, SignalWait
from controller.probes.pressure_alarm import PressureAlarm
from tests.kernel.agent import AgentRun, Site
from tests.kernel.loads import Load, loads
from tests.kernel.looking import Looking
from tests.kernel.overload import CPU, outweigh
from tests.support.pressure_files import PressureFiles, allowing
from tests.support.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.kernel


def looks(agent: AgentRun) -> dict[str, int]:
    return dict(agent.status()["tick"]["looks"])


def push(site: Site) -> None:
    """Push a figure from another process, which has no signals blocked."""
    pid = os.fork()
    if pid == 0:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"web 3", str(site.home / "push.sock"))
        os._exit(0)
    os.waitpid(pid, 0)


def test_a_quiet_agent_looks_and_a_service_that_suffers_gets_a_tick(site: Site) -> None:
    site.tighten()
    site.write("tick: 50ms\nprofiles: [tight.yaml]\n")
    outweigh(site.root, 200)
    outweigh(site.root / "batch")
    before = site.knobs()
    wanted = [Load(site.service, "bursts", CPU), Load(site.batch[0], "hog", CPU)]
    with loads(wanted) as running, AgentRun(site) as agent:
        agent.ready()

        def left_out() -> int:
            time.sleep(0.5)  # the request itself is a reason for a tick
            return looks(agent).get("quiet", 0)

        eventually("ticks that are left out", lambda: left_out() > 5)
        tick = agent.status()["tick"]
        found = tick["looks"]
        assert tick["count"] < sum(found.values())
        assert found["start"] == 1
        assert "waits" not in found
        running.start()
        eventually("a squeeze", lambda: site.knobs() != before)
        # The first tick may have any cause, such as a look that came late; the next ones have this.
        eventually("a tick of that cause", lambda: looks(agent).get("active"))
        assert agent.series("sweetpoint_looks_total")["active",] >= 1
        assert agent.stop() == 0


def test_each_due_moment_makes_a_tick_without_looks(site: Site) -> None:
    site.write("tick: 50ms\nlooks: false\n", mode="observe")
    with AgentRun(site) as agent:
        agent.ready()
        agent.watch(10)
        assert set(looks(agent)) == {"off"}
        assert agent.stop() == 0


@pytest.mark.thorough
def test_each_event_makes_one_tick(looking: Looking, site: Site) -> None:
    assert looking.reason() is TickReason.START
    eventually("quiet", looking.is_quiet)
    looking.published.is_asked = True
    assert looking.reason() is TickReason.REQUEST
    eventually("quiet", looking.is_quiet)
    push(site)
    eventually("the figure", lambda: looking.reason() is TickReason.FIGURE)
    eventually("quiet", looking.is_quiet)
    now_s = time.time()
    entry = PauseEntry(EVERYTHING, "", now_s + 3600)
    change_pauses(site.home / "state", [entry], (), now_s)
    assert looking.reason() is TickReason.PAUSE
    eventually("quiet", looking.is_quiet)
    (site.root / "batch" / "three").mkdir()
    eventually("a scan that is due", lambda: looking.reason() is TickReason.WORKLOADS)
    eventually("quiet", looking.is_quiet)
    looking.looks.expect(TickReason.RELOAD)
    assert looking.reason() is TickReason.RELOAD


@pytest.mark.thorough
def test_the_first_figure_after_a_due_moment_wakes_the_control_thread(
    looking: Looking, site: Site
) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {FIGURE})
    waits = SignalWait({FIGURE})
    try:
        eventually("quiet", looking.is_quiet)
        looking.looks.arm()
        push(site)
        far_ns = time.monotonic_ns() + round(DEADLINE_S * NS_PER_SEC)
        assert waits.until(far_ns, None) == FIGURE
        assert looking.reason(woken=True) is TickReason.FIGURE
        answers = looking.node.services.answers
        push(site)
        eventually("another figure", lambda: looking.node.services.answers > answers)
        assert FIGURE not in signal.sigpending(), "once for each due moment"
        eventually("quiet", looking.is_quiet)
        looking.looks.expect(TickReason.ACTIVE)
        looking.looks.arm()
        push(site)
        eventually("a third figure", lambda: looking.node.services.answers > answers + 1)
        assert FIGURE not in signal.sigpending(), "a tick is due anyway"
    finally:
        waits.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.thorough
def test_the_time_without_ticks_is_told(looking: Looking) -> None:
    def left_out() -> Snapshot | None:
        """Make a tick; return what it measured if the look after it finds nothing."""
        snapshot = looking.tick()
        return snapshot if looking.reason() is None else None

    before = eventually("quiet", left_out)
    looked_ns = time.monotonic_ns()
    snapshot = looking.tick()
    assert 0 < snapshot.left_out_ns <= looked_ns - before.time_ns
    assert looking.looks.left_out_ns == 0


@pytest.mark.thorough
def test_without_the_probe_each_due_moment_makes_a_tick(looking: Looking) -> None:
    eventually("quiet", looking.is_quiet)
    assert looking.node.sampler.sched is not None
    looking.node.sampler.sched.close()
    looking.node.sampler.sched = None
    assert looking.reason() is TickReason.OFF


class Pressed:
    """The looks of a service with a pressure file; nothing reads pressure once a second."""

    def __init__(self, looking: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looking, self.sampler = looking, looking.node.sampler
        self.files = PressureFiles(monkeypatch, "web/memory.pressure")
        self.sampler.pressure_alarm = PressureAlarm(Path("/unified"), pytest.fail)
        (web,) = (each.cgroup for each in looking.node.workloads if each.name == "web")
        looking.pressures = allowing({IndicatorName.PSI_MEMORY: 0.1}, web)
        self.sampler.pressure_alarm.set_workloads(looking.node.workloads)
        eventually("quiet", looking.is_quiet)
        # Other tests make cgroups, too, and each of them would be a reason for a scan.
        looking.follower._budget = ScanBudget(0, 0)
        self.sampler._pressure._due_ns = 2**62
        self.read_ns = self.tick()

    def tick(self) -> int | None:
        """Make a tick; return when it found pressure to be read."""
        return self.looking.tick().pressure_ns

    @property
    def fd(self) -> int | None:
        return self.looking.looks.alarms[1]

    def wait(self) -> None:
        """Wait as the control thread does."""
        waits = SignalWait(set())
        far_ns = time.monotonic_ns() + round(DEADLINE_S * NS_PER_SEC)
        assert waits.until(far_ns, *self.looking.looks.alarms) == READABLE
        self.looking.looks.hear(waits.readable)
        waits.close()

    def fire(self) -> None:
        self.files.fire("web/memory.pressure")


@pytest.fixture
def pressed(looking: Looking, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pressed]:
    pressed = Pressed(looking, monkeypatch)
    yield pressed
    pressed.files.close_all()


@pytest.mark.thorough
def test_pressure_makes_one_tick_which_reads_it(pressed: Pressed) -> None:
    looking = pressed.looking
    assert pressed.fd is None, "not armed"
    looking.looks.arm()
    pressed.fire()
    pressed.wait()
    assert looking.reason(woken=True) is TickReason.PRESSURE
    assert pressed.fd is None, "once for each due moment"
    assert pressed.tick() != pressed.read_ns, "read before it is due"


@pytest.mark.thorough
def test_pressure_that_no_wait_has_heard_of_is_found_when_a_look_is_due(pressed: Pressed) -> None:
    pressed.looking.looks.arm()
    assert pressed.looking.reason() is None
    pressed.fire()
    assert pressed.looking.reason() is TickReason.PRESSURE
    assert pressed.tick() != pressed.read_ns


@pytest.mark.thorough
def test_a_tick_that_is_due_anyway_reads_the_pressure(pressed: Pressed) -> None:
    looking = pressed.looking
    looking.looks.arm()
    looking.looks.expect(TickReason.ACTIVE)
    pressed.fire()
    pressed.wait()
    assert looking.reason(woken=True) is None
    assert looking.reason() is TickReason.ACTIVE
    looking.looks.arm()
    assert pressed.fd is None, "each due moment makes a tick"
    assert pressed.tick() != pressed.read_ns


@pytest.mark.thorough
def test_without_looks_there_are_no_triggers(pressed: Pressed) -> None:
    looking = pressed.looking
    looks = Looks(
        looking.node, looking.follower, looking.pauses, looking.published, TickReason.RECORDING
    )
    looks.arm()
    assert (looks.reason(time.monotonic_ns(), NS_PER_SEC), looks.alarms[1]) == ("recording", None)
    assert pressed.files.opened == 0
    looking.looks.arm()
    assert pressed.files.is_open("web/memory.pressure")
    sched, pressed.sampler.sched = pressed.sampler.sched, None
    assert looking.reason() is TickReason.OFF
    pressed.sampler.sched = sched
    assert not pressed.files.is_open("web/memory.pressure")
