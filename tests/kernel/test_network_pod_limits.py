# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Bandwidth limits of single best-effort pods: enforced, changed in place, removed."""

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
FIRST = 5  # after the one limit of the configuration
CONFIG = """\
workloads: [{name: web, cgroup: /web, class: latency-sensitive}]
network:
  devices: [{name: up0, egress: 200mbit, ingress: 200mbit}]
  limits: [{workload: "etl*", egress: 50mbit}]
  pod_limits: 1
"""


class Site:
    """A host with a shaped uplink, and a best-effort pod."""

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
        """Return the workload of the pod with other limits."""
        return self.batch._replace(
            limit_egress_bytes_per_s=egress_mbit * MBIT,
            limit_ingress_bytes_per_s=None if ingress_mbit is None else ingress_mbit * MBIT,
        )

    def ceilings(self, *workloads: Workload) -> tuple[int, int]:
        """Set *workloads*; return the egress and ingress ceilings of the pod's class in Mbit/s."""
        self.links.set_workloads(workloads)
        for _ in range(2):
            self._now_ns += 2 * NS_PER_SEC
            self.links.reconcile(self.executor, self._now_ns)
        with Netlink() as netlink:
            found = [
                netlink.classes(self.host.ifindex(device))[MAJOR << 16 | FIRST].ceil // MBIT
                for device in self.devices
            ]
        return found[0], found[1]

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


def test_a_limit_is_enforced_and_changed_in_place(site: Site) -> None:
    assert site.ceilings(site.limited(20, 10)) == (20, 10)
    link = site.host.ifindex("up0")
    udp = ("-u", "-l", "1400")
    flow = Flow(site.host, site.host.pods["batch"], seconds=2, mbit=90, extra=udp)
    rates = []
    reader = QdiscReader()
    try:
        for limit in (20, 40):
            site.ceilings(site.limited(limit, 10))
            time.sleep(0.3)
            before, began = sent(reader, link), time.monotonic()
            time.sleep(0.5)
            rates.append((sent(reader, link) - before) * 8e-6 / (time.monotonic() - began))
    finally:
        flow.end()
        reader.close()
    print(f"Mbit/s: {rates}")
    # The counter of a new class would start at 0, and the difference would be smaller.
    assert rates == pytest.approx([20, 40], rel=0.1)


def test_changed_limits_are_no_damage(site: Site) -> None:
    # A tree that another program changes is repaired at most three times in ten minutes.
    for limit in (10, 20, 30, 40, 50, 60):
        assert site.ceilings(site.limited(limit)) == (limit, LINK_MBIT)
    assert not site.links.problems
    assert site.ceilings() == (LINK_MBIT, LINK_MBIT)
    assert site.ceilings(site.limited(500)) == (LINK_MBIT, LINK_MBIT)


def test_a_limit_changed_by_another_program_is_repaired(site: Site) -> None:
    site.ceilings(site.limited(20))
    classid = ("parent", "5357:103", "classid", f"5357:{FIRST:x}")
    change = ("class", "change", "dev", "up0", *classid, "htb", "rate", "8kbit", "ceil", "150mbit")
    site.host.inside(site.host.name, "tc", *change)
    site._now_ns += 6 * NS_PER_SEC
    assert site.ceilings(site.limited(20)) == (20, LINK_MBIT)


def test_a_higher_limit_does_not_replace_that_of_the_configuration(site: Site) -> None:
    assert site.ceilings(site.limited(100)._replace(name="etl-1")) == (LINK_MBIT, LINK_MBIT)
    assert not site.links.problems


def test_a_pod_without_a_class_is_reported(site: Site) -> None:
    other = site.limited(30)._replace(name="other", cgroup=CgroupId("cpu", 1), path="/gone")
    assert site.ceilings(site.limited(20), other) == (20, LINK_MBIT)
    assert "classes for 1 of them" in site.links.problems["pod_limits"]
    assert site.ceilings(site.limited(20)) == (20, LINK_MBIT)
    assert not site.links.problems
