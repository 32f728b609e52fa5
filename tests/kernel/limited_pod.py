# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A host with a shaped uplink, and a best-effort pod with bandwidth limits of its own."""

from collections.abc import Iterator
import contextlib
from pathlib import Path

from actuators.tc.netlink import Netlink
from actuators.tc.shape import MAJOR
from actuators.tc.tree import ifb_name
from controller.config.load import load
from controller.core.model import QosClass, Workload
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout
from controller.probes.qdisc import ClassCounters, QdiscReader
from controller.reconcilers.network.links import ShapedLinks
from tests.kernel.links import MBIT, link_executor, workload_of
from tests.kernel.netns import entered, process_in
from tests.kernel.wire import Host, dump

__all__ = ("LINK_MBIT", "LimitedPod", "limited_pod")

LINK_MBIT = 200
_CLASS = 5  # after the one limit of the configuration
_CONFIG = """\
workloads: [{name: web, cgroup: /web, class: latency-sensitive}]
network:
  devices: [{name: up0, egress: 200mbit, ingress: 200mbit}]
  limits: [{workload: "etl*", egress: 50mbit}]
  pod_limits: 1
"""


class LimitedPod:
    """The host, and the pod as a workload; time passes by calls only."""

    def __init__(self, host: Host, batch: Workload, layout: CgroupLayout, home: Path) -> None:
        (home / "c.yaml").write_text(_CONFIG)
        config = load(home / "c.yaml").network
        assert config is not None
        self.host, self.batch = host, batch
        self.links = ShapedLinks(config, layout)
        self.executor = link_executor(home, self.links.programs)
        self._now_ns = 0
        self._reader = QdiscReader()

    def close(self) -> None:
        self._reader.close()
        self.links.close()

    def limited(self, egress_mbit: float, ingress_mbit: float | None = None) -> Workload:
        """Return the workload of the pod with other limits."""
        return self.batch._replace(
            limit_egress_bytes_per_s=round(egress_mbit * MBIT),
            limit_ingress_bytes_per_s=None if ingress_mbit is None else round(ingress_mbit * MBIT),
        )

    def ceilings(self, *workloads: Workload, after_s: int = 0) -> tuple[float, float]:
        """Set *workloads*; return the egress and ingress ceilings of the pod's class in Mbit/s."""
        self._now_ns += after_s * NS_PER_SEC
        self.links.set_workloads(workloads)
        for _ in range(2):
            self._now_ns += 2 * NS_PER_SEC
            self.links.reconcile(self.executor, self._now_ns)
        with Netlink() as netlink:
            egress, ingress = (
                netlink.classes(self.host.ifindex(device))[MAJOR << 16 | _CLASS].ceil / MBIT
                for device in ("up0", ifb_name(self.host.ifindex("up0")))
            )
        return egress, ingress

    def sent(self) -> ClassCounters:
        """Return the counters of the pod's class at the uplink."""
        link, number = self.host.ifindex("up0"), MAJOR << 16 | _CLASS
        return self._reader.poll({link: [number]})[link, number]

    def change_limit(self, mbit: int) -> None:
        """Change the limit at the uplink, as another program does."""
        classid = ("parent", "5357:103", "classid", f"5357:{_CLASS:x}")
        change = ("class", "change", "dev", "up0", *classid, "htb", "rate", "8kbit")
        self.host.inside(self.host.name, "tc", *change, "ceil", f"{mbit}mbit")


@contextlib.contextmanager
def limited_pod(root: Path, layout: CgroupLayout, home: Path) -> Iterator[LimitedPod]:
    """Make the host and the pod, enter the host's network namespace, and undo it at the end.

    :param root: a cgroup of the test.
    """
    path = root / "batch"
    (path / "container").mkdir(parents=True)
    with (
        Host() as host,
        entered(host.name),
        process_in(host.pods["batch"], path / "container"),
    ):
        before = dump(host)
        made = LimitedPod(host, workload_of(layout, path, QosClass.BE), layout, home)
        with contextlib.closing(made):
            yield made
        assert made.executor.restore_all().clean
        assert dump(host) == before
