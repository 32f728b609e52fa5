# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The net probe compared with known transfers and with the counters of interfaces."""

from collections.abc import Callable, Iterator
import contextlib
import ctypes
from dataclasses import replace
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

import pytest

from controller.core.model import CgroupId, QosClass, Workload
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout, possible_cpus
from controller.probes.bpf.libbpf import libbpf
from controller.probes.bpf.loader import LoadError
from controller.probes.net import NetProbe, Traffic
from tests.kernel.talkers import UDP_HEADERS, Talker
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel

CPUS = max(possible_cpus()) + 1
ETHERNET_HEADER = 14
ZERO = Traffic(0, 0, 0, 0)
INGRESS, EGRESS = 0, 1
ALLOW_MULTI = 2
CGROUP_SKB = 8


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


Start = Callable[..., Talker]


@pytest.fixture
def talk() -> Iterator[Start]:
    """Start talkers; all end with the test."""
    talkers: list[Talker] = []

    def start(*arguments: object, **options: object) -> Talker:
        talkers.append(Talker(*arguments, **options))  # type: ignore[arg-type]
        return talkers[-1]

    yield start
    for talker in talkers:
        talker.end()


def exchange(talk: Start, cgroup: Path, port: str, *, size: int, count: int) -> None:
    """Exchange *count* datagrams with an echo process and wait for the end."""
    client = talk(cgroup, "ask", port=int(port), size=size, count=count)
    client.go()
    client.done()


def exchanged(size: int, count: int) -> Traffic:
    """Return the traffic of *count* echoed datagrams of *size*, which is that of either side."""
    octets = count * (size + UDP_HEADERS)
    return Traffic(octets, octets, count, count)


def test_datagrams_are_counted_to_the_byte_on_both_sides(net: Net, talk: Start) -> None:
    server, client, silent = net.make("server"), net.make("client"), net.make("silent")
    net.follow(server, client, silent)
    echo = talk(server, "echo")
    exchange(talk, client, echo.first, size=1000, count=200)
    assert net.known(client) == exchanged(1000, 200)
    assert net.known(server) == exchanged(1000, 200)
    assert net.known(silent) == ZERO


def test_twenty_concurrent_workloads_are_counted_separately(net: Net, talk: Start) -> None:
    server = net.make("server")
    cgroups = [net.make(f"client{n}") for n in range(20)]
    net.follow(server, *cgroups)
    echo = talk(server, "echo")
    clients = [
        talk(cgroup, "ask", port=int(echo.first), size=10 * n, count=100 + n)
        for n, cgroup in enumerate(cgroups)
    ]
    for client in clients:
        client.go()
    for client in clients:
        client.done()
    each = [exchanged(10 * n, 100 + n) for n in range(20)]
    assert [net.known(cgroup) for cgroup in cgroups] == each
    assert net.known(server) == tuple(map(sum, zip(*each, strict=True)))


def test_cgroups_below_count_for_their_workload(net: Net, talk: Start) -> None:
    server, client = net.make("server"), net.make("client")
    deep = client / "/".join(["d"] * 64)
    deep.mkdir(parents=True)
    net.follow(server, client)
    echo = talk(server, "echo")
    exchange(talk, deep, echo.first, size=100, count=50)
    assert net.known(client) == exchanged(100, 50)
    # A cgroup that is created while its workload is counted.
    exchange(talk, net.make("client/later"), echo.first, size=100, count=50)
    assert net.known(client) == exchanged(100, 100)


def test_a_recreated_directory_starts_at_zero(net: Net, talk: Start) -> None:
    server, client = net.make("server"), net.make("client")
    net.follow(server, client)
    echo = talk(server, "echo")
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


def test_without_a_directory_there_is_no_traffic(
    net: Net, cgroup_layout: CgroupLayout, talk: Start
) -> None:
    if cgroup_layout.version == "v2":
        pytest.skip("on v2 a workload is a cgroup2 directory")
    server, absent = net.make("server"), net.root / "absent"
    net.follow(server, absent)
    assert net.traffic(absent) is None
    net.make("absent")
    net.scan()
    assert net.traffic(absent) == ZERO


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


def test_a_reused_slot_starts_at_zero(
    cgroup_layout: CgroupLayout, cgroup2_root: Path, talk: Start
) -> None:
    probe = NetProbe(cgroup_layout, cpus=CPUS, max_slots=2)
    with contextlib.closing(probe):
        net = Net(cgroup_layout, cgroup2_root, probe)
        server, first, second = net.make("server"), net.make("first"), net.make("second")
        net.follow(server, first)
        echo = talk(server, "echo")
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
def namespaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a veth pair between them: 10.77.0.1 and 10.77.0.2."""
    names = f"swp{os.getpid()}a", f"swp{os.getpid()}b"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, timeout=10)

    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", names[0], "link", "add", "veth0", "type", "veth", "peer", "veth0",
           "netns", names[1])  # fmt: skip
        for number, name in enumerate(names, 1):
            ip("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", "veth0")
            ip("-n", name, "link", "set", "veth0", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, timeout=10)


def ip_bytes(netns: str, link: str) -> tuple[int, int]:
    """Return the bytes that *link* sent and received, without link headers."""
    command = ["ip", "-json", "-stats", "-n", netns, "link", "show", link]
    (found,) = json.loads(subprocess.check_output(command, timeout=10))
    header = 0 if link == "lo" else ETHERNET_HEADER  # loopback counts without it
    tx, rx = (found["stats64"][way] for way in ("tx", "rx"))
    return tx["bytes"] - header * tx["packets"], rx["bytes"] - header * rx["packets"]


def transfer(net: Net, talk: Start, address: str, source_ns: str, sink_ns: str) -> int:
    """Send a TCP stream between two workloads and return its bytes of payload."""
    size, count = 1 << 20, 64
    sink = talk(net.root / "sink", "sink", address=address, netns=sink_ns)
    source = talk(
        net.root / "source", "source", address=address, port=int(sink.first), size=size,
        count=count, netns=source_ns,
    )  # fmt: skip
    source.go()
    source.done()
    sink.done()
    time.sleep(0.1)  # the last FIN and ACK
    return size * count


def test_a_stream_over_veth_agrees_with_the_interface(
    net: Net, talk: Start, namespaces: tuple[str, str]
) -> None:
    source, sink = net.make("source"), net.make("sink")
    net.follow(source, sink)
    before = ip_bytes(namespaces[0], "veth0")
    sent = transfer(net, talk, "10.77.0.2", *namespaces)
    after = ip_bytes(namespaces[0], "veth0")
    tx, rx = (new - old for new, old in zip(after, before, strict=True))
    print(f"veth: {sent} bytes of payload; interface {tx}/{rx}; {net.known(source)}")
    assert net.known(source).tx_bytes == pytest.approx(tx, rel=0.01)
    assert net.known(source).rx_bytes == pytest.approx(rx, rel=0.01, abs=500)
    assert net.known(sink).rx_bytes == pytest.approx(tx, rel=0.01)
    assert net.known(sink).tx_bytes == pytest.approx(rx, rel=0.01, abs=500)
    assert sent < net.known(source).tx_bytes < 1.05 * sent


def test_a_stream_over_loopback_agrees_with_the_interface(
    net: Net, talk: Start, namespaces: tuple[str, str]
) -> None:
    source, sink = net.make("source"), net.make("sink")
    net.follow(source, sink)
    before = ip_bytes(namespaces[0], "lo")
    sent = transfer(net, talk, "127.0.0.1", namespaces[0], namespaces[0])
    after = ip_bytes(namespaces[0], "lo")
    grown = after[0] - before[0]
    both = net.known(source), net.known(sink)
    print(f"lo: {sent} bytes of payload; interface {grown}; {both}")
    assert sum(traffic.tx_bytes for traffic in both) == pytest.approx(grown, rel=0.01)
    assert sum(traffic.rx_bytes for traffic in both) == pytest.approx(grown, rel=0.01)


def attached(cgroup: Path) -> list[list[int]]:
    """Return the ids of the programs attached at *cgroup*: for ingress and for egress."""
    query = libbpf().bpf_prog_query
    result = []
    fd = os.open(cgroup, os.O_RDONLY)
    for kind in (INGRESS, EGRESS):
        ids, count, flags = (ctypes.c_uint32 * 64)(), ctypes.c_uint32(64), ctypes.c_uint32()
        assert not query(fd, kind, 0, ctypes.byref(flags), ids, ctypes.byref(count))
        result.append(list(ids[: count.value]))
    os.close(fd)
    return result


@contextlib.contextmanager
def foreign_program(cgroup: Path, flags: int) -> Iterator[None]:
    """Attach a program that lets everything pass, without a BPF link."""
    library = libbpf()
    # r0 = 1; exit
    code = (ctypes.c_uint64 * 2)(0x00000001_000000B7, 0x95)
    program = library.bpf_prog_load(CGROUP_SKB, b"other", b"GPL", code, ctypes.c_size_t(2), None)
    assert program >= 0, os.strerror(-program)
    target = os.open(cgroup, os.O_RDONLY)
    try:
        for kind in (INGRESS, EGRESS):
            assert library.bpf_prog_attach(program, target, kind, flags) == 0
        yield
        for kind in (INGRESS, EGRESS):
            assert library.bpf_prog_detach2(program, target, kind) == 0
    finally:
        os.close(target)
        os.close(program)


def at(layout: CgroupLayout, root: Path) -> CgroupLayout:
    """Return *layout* with *root* as the mount of the cgroup2 tree."""
    return replace(layout, unified=root)


def test_foreign_programs_stay_attached(cgroup_layout: CgroupLayout, cgroup2_root: Path) -> None:
    with foreign_program(cgroup2_root, ALLOW_MULTI):
        before = attached(cgroup2_root)
        assert [len(ids) for ids in before] == [1, 1]
        probe = NetProbe(at(cgroup_layout, cgroup2_root), cpus=CPUS, max_slots=8)
        during = attached(cgroup2_root)
        probe.close()
        assert [len(ids) for ids in during] == [2, 2]
        assert all(old[0] in new for old, new in zip(before, during, strict=True))
        assert attached(cgroup2_root) == before


def test_an_exclusive_foreign_program_is_a_load_error(
    cgroup_layout: CgroupLayout, cgroup2_root: Path
) -> None:
    with foreign_program(cgroup2_root, 0):
        before = attached(cgroup2_root)
        with pytest.raises(LoadError, match=r"cannot attach to .*Operation not permitted"):
            NetProbe(at(cgroup_layout, cgroup2_root), cpus=CPUS, max_slots=8)
        assert attached(cgroup2_root) == before


def test_a_missing_cgroup2_tree_is_a_load_error(cgroup_layout: CgroupLayout) -> None:
    with pytest.raises(LoadError, match="no cgroup2 tree is mounted"):
        NetProbe(replace(cgroup_layout, unified=None), cpus=CPUS)


_HOLDER = """
import sys, time
from dataclasses import replace
from pathlib import Path
from controller.host.facts import find_cgroup_layout
from controller.probes.net import NetProbe
layout = replace(find_cgroup_layout(), unified=Path(sys.argv[1]))
probe = NetProbe(layout, cpus=int(sys.argv[2]), max_slots=8)
print("holding", flush=True)
time.sleep(60)
"""


def test_nothing_stays_attached_after_the_process_is_killed(cgroup2_root: Path) -> None:
    before = attached(cgroup2_root)
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(cgroup2_root), str(CPUS)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "holding"
        assert [len(ids) for ids in attached(cgroup2_root)] == [len(ids) + 1 for ids in before]
    finally:
        holder.kill()
        holder.communicate()
    eventually("detached", lambda: attached(cgroup2_root) == before)
