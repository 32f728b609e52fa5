# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Best-effort pods that are held to a limit of their own: it holds, moves in place, and goes."""

from collections.abc import Iterator
from pathlib import Path
import subprocess
import time

import pytest

from actuators.tc.netlink import Netlink
from actuators.tc.shape import MAJOR
from actuators.tc.tree import ifb_name
from controller.config.load import load
from controller.core.model import CgroupId, QosClass, Workload
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout
from controller.probes.qdisc import QdiscReader
from controller.reconcilers.network.links import ShapedLinks
from tests.kernel.links import MBIT, link_executor
from tests.kernel.netns import entered
from tests.kernel.wire import Flow, Host, dump

pytestmark = pytest.mark.kernel

LINK_MBIT = 200
FIRST = 5  # behind the one limit of the configuration
CONFIG = """\
workloads: [{name: web, cgroup: /web, class: latency-sensitive}]
network:
  devices: [{name: up0, egress: 200mbit, ingress: 200mbit}]
  limits: [{workload: "etl*", egress: 50mbit}]
  pod_limits: 1
"""


class Site:
    """A host whose uplink is shaped, and a pod of best-effort work."""

    def __init__(self, host: Host, root: Path, layout: CgroupLayout, home: Path) -> None:
        (home / "c.yaml").write_text(CONFIG)
        config = load(home / "c.yaml").network
        assert config is not None
        self.host = host
        self.links = ShapedLinks(config, layout)
        self.executor = link_executor(home, self.links.programs)
        self._now_ns = 0
        below = root / "batch" / "container"
        below.mkdir(parents=True)
        inside = ("nsenter", f"--net=/run/netns/{host.pods['batch']}")
        join = f"echo $$ > {below}/cgroup.procs; exec sleep 1000"
        self._process = subprocess.Popen([*inside, "sh", "-c", join])
        while not (below / "cgroup.procs").read_text():
            assert self._process.poll() is None
        path = root / "batch"
        cgroup = CgroupId(layout.hierarchy, path.stat().st_ino)
        relative = "/" + str(path.relative_to(layout.mount))
        self.batch = Workload("batch", cgroup, relative, QosClass.BE, "batch", "")

    def end(self) -> None:
        self.links.close()
        self._process.kill()
        self._process.wait()

    def limited(self, egress_mbit: int, ingress_mbit: int | None = None) -> Workload:
        """The pod with other limits."""
        return self.batch._replace(
            limit_egress_bytes_per_s=egress_mbit * MBIT,
            limit_ingress_bytes_per_s=None if ingress_mbit is None else ingress_mbit * MBIT,
        )

    def follow(self, *workloads: Workload) -> tuple[int, int]:
        """Let *workloads* run; return the ceilings of the lent class, out and in, Mbit/s."""
        self.links.set_workloads(workloads)
        for _ in range(2):
            self._now_ns += 2 * NS_PER_SEC
            self.links.reconcile(self.executor, self._now_ns)
        with Netlink() as netlink:
            ceilings = [
                netlink.classes(self.host.ifindex(device))[MAJOR << 16 | FIRST].ceil // MBIT
                for device in self.devices
            ]
        return ceilings[0], ceilings[1]

    @property
    def devices(self) -> tuple[str, str]:
        return "up0", ifb_name(self.host.ifindex("up0"))


@pytest.fixture
def site(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Iterator[Site]:
    with Host() as host, entered(host.name):
        before = dump(host)
        site = Site(host, cgroup_root, cgroup_layout, tmp_path)
        try:
            yield site
        finally:
            site.end()
        assert site.executor.restore_all().clean
        assert dump(host) == before


def sent(reader: QdiscReader, ifindex: int) -> int:
    number = MAJOR << 16 | FIRST
    return reader.poll({ifindex: [number]})[ifindex, number].sent_bytes


def test_a_pod_is_held_to_its_limit_and_gets_the_next_one_in_place(site: Site) -> None:
    assert site.follow(site.limited(20, 10)) == (20, 10)
    link = site.host.ifindex("up0")
    udp = ("-u", "-l", "1400")
    flow = Flow(site.host, site.host.pods["batch"], seconds=2, mbit=90, extra=udp)
    rates = []
    reader = QdiscReader()
    try:
        for limit in (20, 40):
            site.follow(site.limited(limit, 10))
            time.sleep(0.3)
            before, began = sent(reader, link), time.monotonic()
            time.sleep(0.5)
            rates.append((sent(reader, link) - before) * 8e-6 / (time.monotonic() - began))
    finally:
        flow.end()
        reader.close()
    print(f"Mbit/s: {rates}")
    # A class made anew would have counted from nothing, and the difference would be less.
    assert rates == pytest.approx([20, 40], rel=0.1)


def test_limits_that_move_are_nobodys_damage(site: Site) -> None:
    # A tree that somebody changes is repaired three times in ten minutes.
    for limit in (10, 20, 30, 40, 50, 60):
        assert site.follow(site.limited(limit)) == (limit, LINK_MBIT)
    assert not site.links.problems
    assert site.follow() == (LINK_MBIT, LINK_MBIT)
    assert site.follow(site.limited(500)) == (LINK_MBIT, LINK_MBIT)


def test_who_moves_a_limit_finds_it_moved_back(site: Site) -> None:
    site.follow(site.limited(20))
    classid = ("parent", "5357:103", "classid", f"5357:{FIRST:x}")
    ours = ("class", "change", "dev", "up0", *classid, "htb", "rate", "8kbit", "ceil", "150mbit")
    site.host.inside(site.host.name, "tc", *ours)
    site._now_ns += 6 * NS_PER_SEC
    assert site.follow(site.limited(20)) == (20, LINK_MBIT)


def test_a_limit_of_the_configuration_cannot_be_left_by_a_higher_one(site: Site) -> None:
    assert site.follow(site.limited(100)._replace(name="etl-1")) == (LINK_MBIT, LINK_MBIT)
    assert not site.links.problems


def test_for_whom_there_is_no_class_is_told(site: Site) -> None:
    other = site.limited(30)._replace(name="other", cgroup=CgroupId("cpu", 1), path="/gone")
    assert site.follow(site.limited(20), other) == (20, LINK_MBIT)
    assert "classes for 1 of them" in site.links.problems["pod_limits"]
    assert site.follow(site.limited(20)) == (20, LINK_MBIT)
    assert not site.links.problems
