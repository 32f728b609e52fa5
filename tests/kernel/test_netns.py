# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Traffic by network namespace, compared with the exact number of bytes sent."""

from collections.abc import Iterator
import contextlib
from dataclasses import replace
import itertools
import os
from pathlib import Path
import subprocess
import time

import pytest

from controller.core.model import CgroupId, QosClass, Workload
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout, possible_cpus
from controller.probes.net import NetProbe
from controller.probes.netns import NetnsMeter
from tests.kernel.talkers import UDP_HEADERS, Talker
from tests.support.cgroups import remove_cgroup

pytestmark = pytest.mark.kernel

SIZE, COUNT = 1000, 2000
_numbers = itertools.count()


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def pair() -> Iterator[tuple[str, str]]:
    """Two namespaces with a veth pair between them: 10.98.0.1 and 10.98.0.2."""
    prefix = f"swn{os.getpid()}-{next(_numbers)}"
    names = (f"{prefix}-a", f"{prefix}-b")
    with contextlib.ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
        ip("-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"10.98.0.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names


class Hosted:
    """Workloads in cgroups of a test, and the meter; each ``read`` is 6 s after the last."""

    def __init__(self, root: Path, layout: CgroupLayout) -> None:
        self._root, self._layout = root, layout
        # As on a host without a cgroup2 tree, so that no workload is measured by cgroup.
        self.meter = NetnsMeter(replace(layout, unified=None))
        self.workloads: list[Workload] = []
        self._now_ns = time.monotonic_ns()

    def add(self, name: str) -> CgroupId:
        folder = self._root / name
        folder.mkdir(parents=True)
        cgroup = CgroupId(self._layout.hierarchy, folder.stat().st_ino)
        path = "/" + str(folder.relative_to(self._layout.mount))
        self.workloads.append(Workload(name, cgroup, path, QosClass.LS, name, "default"))
        return cgroup

    def read(self, measured: tuple[CgroupId, ...] = ()) -> dict[CgroupId, tuple[int, ...]]:
        self._now_ns += 6 * NS_PER_SEC
        return {c: tuple(t) for c, t in self.meter.poll(self._now_ns, measured).items()}


@pytest.fixture
def hosted(cgroup_root: Path, cgroup_layout: CgroupLayout) -> Iterator[Hosted]:
    made = Hosted(cgroup_root, cgroup_layout)
    yield made
    made.meter.close()


def test_bytes_and_packets_are_those_of_ip(
    hosted: Hosted, pair: tuple[str, str], cgroup_root: Path
) -> None:
    client, server = hosted.add("client"), hosted.add("server")
    echo = Talker(cgroup_root / "server", "echo", address="10.98.0.2", netns=pair[1])
    ask = Talker(
        cgroup_root / "client", "ask", address="10.98.0.2", port=int(echo.first), netns=pair[0],
        size=SIZE, count=COUNT,
    )  # fmt: skip
    lone = Talker(cgroup_root / "client", "echo", netns=pair[0])
    try:
        hosted.meter.set_workloads(hosted.workloads)
        assert hosted.read() == {client: (0, 0, 0, 0), server: (0, 0, 0, 0)}
        ask.go()
        ask.done()
        traffic = hosted.read()
    finally:
        for talker in (echo, ask, lone):
            talker.end()
    expected = (*(COUNT * (SIZE + UDP_HEADERS),) * 2, COUNT, COUNT)
    for cgroup in (client, server):
        # ARP, and IPv6 packets of an interface that comes up, are counted as well.
        for counted, wanted in zip(traffic[cgroup], expected, strict=True):
            assert wanted <= counted <= wanted * 1.01, (traffic, expected)


def test_it_agrees_with_the_counters_by_cgroup(
    cgroup_layout: CgroupLayout, pair: tuple[str, str]
) -> None:
    assert cgroup_layout.unified is not None
    name = f"sweetpoint-test-both-{os.getpid()}"
    # The same path in both trees, which are one on a cgroup2 host.
    folders = {cgroup_layout.mount / name, cgroup_layout.unified / name}
    for folder in folders:
        folder.mkdir()
    probe = NetProbe(cgroup_layout, cpus=max(possible_cpus()) + 1, max_slots=8)
    meter = NetnsMeter(cgroup_layout)
    talkers = []
    try:
        cgroup = CgroupId(cgroup_layout.hierarchy, (cgroup_layout.mount / name).stat().st_ino)
        workload = Workload("both", cgroup, f"/{name}", QosClass.LS, "both", "default")
        inside = cgroup_layout.unified / name
        sink = Talker(cgroup_layout.unified, "sink", address="10.98.0.2", netns=pair[1])
        talkers.append(sink)
        source = Talker(
            inside, "source", address="10.98.0.2", port=int(sink.first), netns=pair[0],
            size=1 << 20, count=64,
        )  # fmt: skip
        talkers.append(source)
        (cgroup_layout.mount / name / "cgroup.procs").write_text(str(source.pid))
        probe.set_workloads([workload])
        meter.set_workloads([workload])
        probe.poll(0)
        meter.poll(0, ())
        source.go()
        source.done()
        sink.done()
        by_cgroup = probe.poll(10 * NS_PER_SEC)[cgroup]
        by_netns = meter.poll(10 * NS_PER_SEC, ())[cgroup]
    finally:
        for talker in talkers:
            talker.end()
        probe.close()
        meter.close()
        for folder in folders:
            remove_cgroup(folder)
    assert by_cgroup.tx_bytes > 64 << 20
    assert by_netns.tx_bytes == pytest.approx(by_cgroup.tx_bytes, rel=0.001)
    assert by_netns.tx_packets == pytest.approx(by_cgroup.tx_packets, rel=0.01)
    # Few acknowledgements; ARP and neighbour discovery are more than a hundredth of them.
    assert 0 <= by_netns.rx_packets - by_cgroup.rx_packets <= 10
    assert 0 <= by_netns.rx_bytes - by_cgroup.rx_bytes <= 1000


def test_loopback_inside_is_not_counted(
    hosted: Hosted, pair: tuple[str, str], cgroup_root: Path
) -> None:
    inside = hosted.add("pod")
    echo = Talker(cgroup_root / "pod", "echo", netns=pair[0])
    ask = Talker(
        cgroup_root / "pod", "ask", port=int(echo.first), netns=pair[0], size=SIZE, count=COUNT
    )
    try:
        hosted.meter.set_workloads(hosted.workloads)
        hosted.read()
        ask.go()
        ask.done()
        assert sum(hosted.read()[inside]) < SIZE * COUNT / 100
    finally:
        echo.end()
        ask.end()


def test_a_shared_namespace_is_charged_once(
    hosted: Hosted, pair: tuple[str, str], cgroup_root: Path
) -> None:
    first, second, host = hosted.add("pod/one"), hosted.add("pod/two"), hosted.add("host")
    talkers = [
        Talker(cgroup_root / "pod/one", "echo", netns=pair[0]),
        Talker(cgroup_root / "pod/two", "echo", netns=pair[0]),
        Talker(cgroup_root / "host", "echo"),
    ]
    try:
        hosted.meter.set_workloads(hosted.workloads)
        # The traffic of the host's own namespace belongs to no single workload.
        assert set(hosted.read()) == {first}
        # A workload measured by cgroup gives up the namespace; the next one starts at zero.
        assert set(hosted.read(measured=(first,))) <= {second}
        assert set(hosted.read(measured=(first,))) == {second}
        hosted.meter.set_workloads([w for w in hosted.workloads if w.cgroup in (first, host)])
        hosted.read()
        assert set(hosted.read()) == {first}
    finally:
        for talker in talkers:
            talker.end()
    # Without processes there is no namespace.
    assert hosted.read() == {}


def test_a_namespace_ends_with_its_workload(
    hosted: Hosted, pair: tuple[str, str], cgroup_root: Path
) -> None:
    pod = hosted.add("pod")
    before = len(os.listdir("/proc/self/fd"))
    talker = Talker(cgroup_root / "pod", "echo", netns=pair[0])
    try:
        hosted.meter.set_workloads(hosted.workloads)
        assert set(hosted.read()) == {pod}
        # An interface is removed with its counters; the meter's counters do not fall.
        ip("-n", pair[0], "link", "del", "eth0")
        assert min(hosted.read()[pod]) >= 0
    finally:
        talker.end()
    hosted.meter.set_workloads([])
    assert hosted.read() == {}
    assert len(os.listdir("/proc/self/fd")) == before


def test_interfaces_on_top_of_others_count_once(
    hosted: Hosted, pair: tuple[str, str], cgroup_root: Path
) -> None:
    """A bridge with an inner container in the namespace, as in docker-in-docker."""
    pod = hosted.add("pod")
    name, inner = pair[0], f"{pair[0]}-inner"
    ip("netns", "add", inner)
    try:
        ip("-n", name, "addr", "flush", "dev", "eth0")
        ip("-n", name, "link", "add", "br0", "type", "bridge")
        ip("-n", name, "link", "set", "br0", "up")
        ip("-n", name, "link", "add", "v0", "type", "veth", "peer", "eth0", "netns", inner)
        ip("-n", name, "link", "set", "v0", "up", "master", "br0")
        ip("-n", inner, "addr", "add", "10.97.0.2/24", "dev", "eth0")
        ip("-n", inner, "link", "set", "eth0", "up")
        ip("-n", name, "addr", "add", "10.97.0.1/24", "dev", "br0")
        ip("-n", name, "addr", "add", "10.98.0.1/24", "dev", "eth0")
        echo = Talker(cgroup_root / "pod", "echo", address="10.97.0.1", netns=name)
        ask = Talker(
            cgroup_root / "pod", "ask", address="10.97.0.1", port=int(echo.first), netns=inner,
            size=SIZE, count=COUNT,
        )  # fmt: skip
        try:
            hosted.meter.set_workloads(hosted.workloads)
            hosted.read()
            ask.go()
            ask.done()
            # The traffic stayed inside: neither the bridge nor its port is a border.
            assert sum(hosted.read()[pod]) < SIZE * COUNT / 100
        finally:
            echo.end()
            ask.end()
    finally:
        ip("netns", "del", inner)
