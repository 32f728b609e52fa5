# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Traffic by network namespace, compared with the exact number of bytes sent."""

from collections.abc import Iterator
import contextlib
from dataclasses import replace
import os
from pathlib import Path

import pytest

from controller.core.model import CgroupId, QosClass, Workload
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout, possible_cpus
from controller.probes.net import NetProbe, Traffic
from controller.probes.netns import NetnsMeter
from tests.kernel.links import workload_of
from tests.kernel.netns import batch, linked_pair, namespaces, run
from tests.kernel.talkers import UDP_HEADERS, Talker
from tests.support.cgroups import remove_cgroup

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]

SIZE, COUNT = 1000, 2000
ZERO = Traffic(0, 0, 0, 0)


@pytest.fixture
def pair() -> Iterator[tuple[str, str]]:
    """Two namespaces with a veth pair between them: 10.98.0.1 and 10.98.0.2."""
    with linked_pair() as names:
        yield names


def asking(cgroup: Path, echo: Talker, *, netns: str, address: str = "127.0.0.1") -> Talker:
    """Start a client of *echo*; both exchange ``COUNT`` datagrams as soon as it goes."""
    port = int(echo.first)
    return Talker(cgroup, "ask", address=address, port=port, size=SIZE, count=COUNT, netns=netns)


class Hosted:
    """Workloads in cgroups of a test, and the meter; each ``read`` is 6 s after the last."""

    def __init__(self, root: Path, layout: CgroupLayout) -> None:
        self._root, self._layout = root, layout
        # As on a host without a cgroup2 tree, so that no workload is measured by cgroup.
        self.meter = NetnsMeter(replace(layout, unified=None))
        self.workloads: list[Workload] = []
        self._now_ns = 0

    def add(self, name: str) -> CgroupId:
        folder = self._root / name
        folder.mkdir(parents=True)
        self.workloads.append(workload_of(self._layout, folder, QosClass.LS))
        return self.workloads[-1].cgroup

    def read(self, measured: tuple[CgroupId, ...] = ()) -> dict[CgroupId, Traffic]:
        self._now_ns += 6 * NS_PER_SEC
        return dict(self.meter.poll(self._now_ns, measured))


@pytest.fixture
def hosted(cgroup_root: Path, cgroup_layout: CgroupLayout) -> Iterator[Hosted]:
    made = Hosted(cgroup_root, cgroup_layout)
    yield made
    made.meter.close()


def test_bytes_and_packets_are_those_of_ip(
    hosted: Hosted, pair: tuple[str, str], cgroup_root: Path
) -> None:
    client, server = hosted.add("client"), hosted.add("server")
    to, here, there = "10.98.0.2", cgroup_root / "client", cgroup_root / "server"
    with (
        Talker(there, "echo", address=to, netns=pair[1]) as echo,
        asking(here, echo, address=to, netns=pair[0]) as ask,
        Talker(here, "echo", netns=pair[0]),
    ):
        hosted.meter.set_workloads(hosted.workloads)
        assert hosted.read() == {client: ZERO, server: ZERO}
        ask.go()
        ask.done()
        traffic = hosted.read()
    octets = COUNT * (SIZE + UDP_HEADERS)
    assert traffic == dict.fromkeys((client, server), Traffic(octets, octets, COUNT, COUNT))


def test_it_agrees_with_the_counters_by_cgroup(
    cgroup_layout: CgroupLayout, pair: tuple[str, str]
) -> None:
    assert cgroup_layout.unified is not None
    name = f"sweetpoint-test-both-{os.getpid()}"
    # The same path in both trees, which are one on a cgroup2 host.
    folders = {cgroup_layout.mount / name, cgroup_layout.unified / name}
    with contextlib.ExitStack() as stack:
        for folder in folders:
            folder.mkdir()
            stack.callback(remove_cgroup, folder)
        probe = NetProbe(cgroup_layout, cpus=max(possible_cpus()) + 1, max_slots=8)
        stack.callback(probe.close)
        meter = NetnsMeter(cgroup_layout)
        stack.callback(meter.close)
        workload = workload_of(cgroup_layout, cgroup_layout.mount / name, QosClass.LS)
        to, inside = "10.98.0.2", cgroup_layout.unified / name
        sink = stack.enter_context(Talker(cgroup_layout.unified, "sink", address=to, netns=pair[1]))
        source = stack.enter_context(
            Talker(
                inside,
                "source",
                address=to,
                port=int(sink.first),
                netns=pair[0],
                size=1 << 20,
                count=64,
            )
        )
        (cgroup_layout.mount / name / "cgroup.procs").write_text(str(source.pid))
        probe.set_workloads([workload])
        meter.set_workloads([workload])
        probe.poll(0)
        meter.poll(0, ())
        source.go()
        source.done()
        sink.done()
        by_cgroup = probe.poll(10 * NS_PER_SEC)[workload.cgroup]
        by_netns = meter.poll(10 * NS_PER_SEC, ())[workload.cgroup]
    print(by_cgroup, by_netns)
    assert by_cgroup.tx_bytes > 64 << 20
    # The last packets of a connection belong to no cgroup, because its socket is closed.
    for counted, all_of_it, most in zip(by_cgroup, by_netns, (200, 200, 4, 4), strict=True):
        assert 0 <= all_of_it - counted <= most


def test_loopback_inside_is_not_counted(
    hosted: Hosted, pair: tuple[str, str], cgroup_root: Path
) -> None:
    inside = hosted.add("pod")
    with (
        Talker(cgroup_root / "pod", "echo", netns=pair[0]) as echo,
        asking(cgroup_root / "pod", echo, netns=pair[0]) as ask,
    ):
        hosted.meter.set_workloads(hosted.workloads)
        hosted.read()
        ask.go()
        ask.done()
        assert hosted.read() == {inside: ZERO}


def test_a_shared_namespace_is_charged_once(
    hosted: Hosted, pair: tuple[str, str], cgroup_root: Path
) -> None:
    first, second, host = hosted.add("pod/one"), hosted.add("pod/two"), hosted.add("host")
    with (
        Talker(cgroup_root / "pod/one", "echo", netns=pair[0]),
        Talker(cgroup_root / "pod/two", "echo", netns=pair[0]),
        Talker(cgroup_root / "host", "echo"),
    ):
        hosted.meter.set_workloads(hosted.workloads)
        # The traffic of the host's own namespace belongs to no single workload.
        assert set(hosted.read()) == {first}
        # A workload measured by cgroup gives up the namespace; the next one starts at zero.
        assert set(hosted.read(measured=(first,))) <= {second}
        assert set(hosted.read(measured=(first,))) == {second}
        hosted.meter.set_workloads([w for w in hosted.workloads if w.cgroup in (first, host)])
        hosted.read()
        assert set(hosted.read()) == {first}
    # Without processes there is no namespace.
    assert hosted.read() == {}


def test_a_namespace_ends_with_its_workload(
    hosted: Hosted, pair: tuple[str, str], cgroup_root: Path
) -> None:
    pod = hosted.add("pod")
    before = len(os.listdir("/proc/self/fd"))
    with Talker(cgroup_root / "pod", "echo", netns=pair[0]):
        hosted.meter.set_workloads(hosted.workloads)
        assert set(hosted.read()) == {pod}
        # An interface is removed with its counters; the meter's counters do not fall.
        run("ip", "-n", pair[0], "link", "del", "eth0")
        assert min(hosted.read()[pod]) >= 0
    hosted.meter.set_workloads([])
    assert hosted.read() == {}
    assert len(os.listdir("/proc/self/fd")) == before


def test_interfaces_on_top_of_others_count_once(
    hosted: Hosted, pair: tuple[str, str], cgroup_root: Path
) -> None:
    """A bridge with an inner container in the namespace, as in docker-in-docker."""
    pod, name = hosted.add("pod"), pair[0]
    with namespaces(1) as (inner,):
        outside = [
            "addr flush dev eth0",
            "link add br0 type bridge",
            "link set br0 up",
            f"link add v0 type veth peer eth0 netns {inner}",
            "link set v0 up master br0",
            "addr add 10.97.0.1/24 dev br0",
            "addr add 10.98.0.1/24 dev eth0",
        ]
        batch(name, outside)
        batch(inner, ["addr add 10.97.0.2/24 dev eth0", "link set eth0 up"])
        with (
            Talker(cgroup_root / "pod", "echo", address="10.97.0.1", netns=name) as echo,
            asking(cgroup_root / "pod", echo, address="10.97.0.1", netns=inner) as ask,
        ):
            hosted.meter.set_workloads(hosted.workloads)
            hosted.read()
            ask.go()
            ask.done()
            # The traffic stayed inside: neither the bridge nor its port is a border.
            assert hosted.read() == {pod: ZERO}
