# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The net probe compared with known transfers and with the counters of interfaces."""

from collections.abc import Callable, Iterator
import contextlib
import json
import os
from pathlib import Path
import signal

import pytest

from controller.core.model import CgroupId, QosClass, Workload
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout, possible_cpus
from controller.probes.net import NetProbe, Traffic
from tests.kernel.netns import linked_pair, run
from tests.kernel.talkers import UDP_HEADERS, Talker
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel

CPUS = max(possible_cpus()) + 1
ETHERNET_HEADER = 14
TCP_HEADERS = 20 + 32  # IPv4, and TCP with time stamps
ZERO = Traffic(0, 0, 0, 0)


class Net:
    """A probe and the cgroup2 directories that it counts for, one workload each."""

    def __init__(self, layout: CgroupLayout, root: Path, probe: NetProbe) -> None:
        self.root, self.probe = root, probe
        self._layout = layout
        self._keys: dict[Path, CgroupId] = {}

    def make(self, name: str) -> Path:
        path = self.root / name
        path.mkdir()
        return path

    def follow(self, *paths: Path) -> None:
        """Count for *paths* from now on; if cpu is on v1, with made-up but constant cgroup ids."""
        v1 = self._layout.version == "v1"
        for path in paths:
            if path not in self._keys:
                inode = 1_000_000 + len(self._keys) if v1 else path.stat().st_ino
                self._keys[path] = CgroupId(self._layout.hierarchy, inode)
        self.probe.set_workloads(self._workload(path) for path in paths)
        self.probe.poll(0)

    def scan(self) -> None:
        """Let the probe scan the directories again."""
        self.probe.poll(2**62)

    def traffic(self, path: Path) -> Traffic | None:
        return self.probe.poll(0).get(self._keys[path])

    def known(self, path: Path) -> Traffic:
        traffic = self.traffic(path)
        assert traffic is not None
        return traffic

    def _workload(self, path: Path) -> Workload:
        assert self._layout.unified is not None
        name = "/" + str(path.relative_to(self._layout.unified))
        return Workload(path.name, self._keys[path], name, QosClass.BE, path.name, "")


@pytest.fixture
def net(cgroup_layout: CgroupLayout, cgroup2_root: Path) -> Iterator[Net]:
    probe = NetProbe(cgroup_layout, cpus=CPUS)
    yield Net(cgroup_layout, cgroup2_root, probe)
    probe.close()


Talk = Callable[[Talker], Talker]


@pytest.fixture
def talk() -> Iterator[Talk]:
    """End the given talkers with the test."""
    with contextlib.ExitStack() as stack:
        yield stack.enter_context


def exchange(talk: Talk, cgroup: Path, port: str, *, size: int, count: int) -> None:
    """Exchange *count* datagrams with an echo process and wait for the end."""
    client = talk(Talker(cgroup, "ask", port=int(port), size=size, count=count))
    client.go()
    client.done()


def exchanged(size: int, count: int) -> Traffic:
    """Return the traffic of *count* echoed datagrams of *size*, which is that of either side."""
    octets = count * (size + UDP_HEADERS)
    return Traffic(octets, octets, count, count)


def test_datagrams_are_counted_to_the_byte_on_both_sides(net: Net, talk: Talk) -> None:
    server, client, silent = net.make("server"), net.make("client"), net.make("silent")
    net.follow(server, client, silent)
    echo = talk(Talker(server, "echo"))
    exchange(talk, client, echo.first, size=1000, count=200)
    assert net.known(client) == exchanged(1000, 200)
    assert net.known(server) == exchanged(1000, 200)
    assert net.known(silent) == ZERO


@pytest.mark.thorough
def test_twenty_concurrent_workloads_are_counted_separately(net: Net, talk: Talk) -> None:
    server = net.make("server")
    cgroups = [net.make(f"client{n}") for n in range(20)]
    net.follow(server, *cgroups)
    echo = talk(Talker(server, "echo"))
    clients = [
        talk(Talker(cgroup, "ask", port=int(echo.first), size=10 * n, count=100 + n))
        for n, cgroup in enumerate(cgroups)
    ]
    for client in clients:
        client.go()
    for client in clients:
        client.done()
    each = [exchanged(10 * n, 100 + n) for n in range(20)]
    assert [net.known(cgroup) for cgroup in cgroups] == each
    assert net.known(server) == tuple(map(sum, zip(*each, strict=True)))


@pytest.mark.thorough
def test_cgroups_below_count_for_their_workload(net: Net, talk: Talk) -> None:
    server, client = net.make("server"), net.make("client")
    deep = client / "/".join(["d"] * 64)
    deep.mkdir(parents=True)
    net.follow(server, client)
    echo = talk(Talker(server, "echo"))
    exchange(talk, deep, echo.first, size=100, count=50)
    assert net.known(client) == exchanged(100, 50)
    # A cgroup that is created while its workload is counted.
    exchange(talk, net.make("client/later"), echo.first, size=100, count=50)
    assert net.known(client) == exchanged(100, 100)


@pytest.mark.thorough
def test_a_recreated_directory_starts_at_zero(net: Net, talk: Talk) -> None:
    server, client = net.make("server"), net.make("client")
    net.follow(server, client)
    echo = talk(Talker(server, "echo"))
    exchange(talk, client, echo.first, size=100, count=50)
    assert net.known(client) == exchanged(100, 50)
    eventually("an empty cgroup", lambda: _remove(client))
    net.make("client")
    net.follow(server, client)
    net.scan()
    assert net.known(client) == ZERO
    exchange(talk, client, echo.first, size=10, count=7)
    assert net.known(client) == exchanged(10, 7)
    assert net.known(server) == tuple(
        map(sum, zip(exchanged(100, 50), exchanged(10, 7), strict=True))
    )


def _remove(path: Path) -> bool:
    for pid in (path / "cgroup.procs").read_text().split():
        os.kill(int(pid), signal.SIGKILL)  # the talkers that this test started there
    with contextlib.suppress(OSError):
        path.rmdir()
    return not path.exists()


@pytest.mark.thorough
def test_without_a_directory_there_is_no_traffic(
    net: Net, cgroup_layout: CgroupLayout, talk: Talk
) -> None:
    if cgroup_layout.version == "v2":
        pytest.skip("on v2 a workload is a cgroup2 directory")
    server, absent = net.make("server"), net.root / "absent"
    net.follow(server, absent)
    assert net.traffic(absent) is None
    net.make("absent")
    net.scan()
    assert net.traffic(absent) == ZERO


@pytest.mark.thorough
def test_directories_are_found_however_often_workloads_are_added(
    net: Net, cgroup_layout: CgroupLayout
) -> None:
    if cgroup_layout.version == "v2":
        pytest.skip("on v2 a workload is a cgroup2 directory")
    others = [net.make(f"here-{number}") for number in range(10)]
    absent = net.root / "absent"
    net.follow(*others, absent)
    net.make("absent")
    for number in range(10):
        others[0] = net.root / f"added-{number}"
        net.follow(*others, absent)
        net.probe.poll(number * NS_PER_SEC)
    assert net.traffic(absent) == ZERO


@pytest.mark.thorough
def test_a_reused_slot_starts_at_zero(
    cgroup_layout: CgroupLayout, cgroup2_root: Path, talk: Talk
) -> None:
    probe = NetProbe(cgroup_layout, cpus=CPUS, max_slots=2)
    with contextlib.closing(probe):
        net = Net(cgroup_layout, cgroup2_root, probe)
        server, first, second = net.make("server"), net.make("first"), net.make("second")
        net.follow(server, first)
        echo = talk(Talker(server, "echo"))
        exchange(talk, first, echo.first, size=100, count=50)
        net.follow(second, server)  # the slot of the first is the only free one
        assert net.known(second) == ZERO
        exchange(talk, second, echo.first, size=10, count=3)
        assert net.known(second) == exchanged(10, 3)
        net.follow(server, second, first)
        assert net.traffic(first) is None  # no free slot
        net.follow(server, first)
        assert net.known(first) == ZERO


@pytest.fixture
def pair() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a veth pair between them: 10.98.0.1 and 10.98.0.2."""
    with linked_pair() as names:
        yield names


def of_interface(netns: str, link: str) -> Traffic:
    """Return what *link* sent and received, without link headers."""
    (found,) = json.loads(run("ip", "-json", "-stats", "-n", netns, "link", "show", link))
    header = 0 if link == "lo" else ETHERNET_HEADER  # loopback counts without it
    tx, rx = (found["stats64"][way] for way in ("tx", "rx"))
    tx_bytes, rx_bytes = (each["bytes"] - header * each["packets"] for each in (tx, rx))
    return Traffic(tx_bytes, rx_bytes, tx["packets"], rx["packets"])


def transfer(net: Net, talk: Talk, address: str, source_ns: str, sink_ns: str) -> int:
    """Send a TCP stream between two workloads and return its bytes of payload."""
    size, count = 1 << 20, 64
    sink = talk(Talker(net.root / "sink", "sink", address=address, netns=sink_ns))
    source = talk(
        Talker(
            net.root / "source", "source", address=address, port=int(sink.first), size=size,
            count=count, netns=source_ns,
        )
    )  # fmt: skip
    source.go()
    source.done()
    sink.done()
    return size * count


def missing(counted: Traffic, wanted: Traffic) -> Traffic:
    """Return what *counted* lacks of *wanted*."""
    return Traffic(*(w - c for w, c in zip(wanted, counted, strict=True)))


def is_complete(octets: int, packets: int) -> bool:
    """Return whether at most the last packets of a connection are missing.

    They belong to no cgroup, because the socket is closed already. Until they have arrived, the
    counters of the interface may be older than those of the probe.
    """
    return 0 <= packets <= 4 and octets == packets * TCP_HEADERS


@pytest.mark.thorough
def test_a_stream_over_veth_agrees_with_the_interface(
    net: Net, talk: Talk, pair: tuple[str, str]
) -> None:
    source, sink = net.make("source"), net.make("sink")
    net.follow(source, sink)
    sent = transfer(net, talk, "10.98.0.2", *pair)

    def agree() -> bool:
        found = [of_interface(name, "eth0") for name in pair]
        print(f"{sent} bytes of payload; {found}; {net.known(source)}, {net.known(sink)}")
        less = [
            missing(net.known(each), of) for each, of in zip((source, sink), found, strict=True)
        ]
        return all(
            is_complete(each.tx_bytes, each.tx_packets)
            and is_complete(each.rx_bytes, each.rx_packets)
            for each in less
        )

    eventually("the packets of the interfaces", agree)
    assert sent < net.known(source).tx_bytes < 1.05 * sent


@pytest.mark.thorough
def test_a_stream_over_loopback_agrees_with_the_interface(
    net: Net, talk: Talk, pair: tuple[str, str]
) -> None:
    source, sink = net.make("source"), net.make("sink")
    net.follow(source, sink)
    sent = transfer(net, talk, "127.0.0.1", pair[0], pair[0])

    def agree() -> bool:
        found = of_interface(pair[0], "lo")
        both = net.known(source), net.known(sink)
        print(f"{sent} bytes of payload; {found}; {both}")
        less = missing(Traffic(*map(sum, zip(*both, strict=True))), found)
        # Loopback divides what is longer than its MTU, and each further packet has headers.
        return (
            is_complete(less.rx_bytes, less.rx_packets)
            and less.tx_packets >= less.rx_packets
            and less.tx_bytes == less.tx_packets * TCP_HEADERS
        )

    eventually("the packets of the interface", agree)
