# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which devices can be shaped, the reasons for the others, and the host's ends of veths."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from actuators.tc.netlink import Netlink
from controller.config.load import load
from controller.config.sections.network import NetworkConfig
from controller.doctor.optional import find_links
from controller.reconcilers.network.device import Device, DeviceError, open_device
from controller.reconcilers.network.pod_filters import host_ends
from tests.kernel.netns import entered, process_in
from tests.kernel.wire import Host

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]

MBIT = 125_000


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as made, entered(made.name):
        yield made


def network(tmp_path: Path, device: str, rest: str = "") -> NetworkConfig:
    """Return the section ``network`` with one device, loaded from a file."""
    path = tmp_path / "c.yaml"
    path.write_text(
        "workloads: [{name: web, cgroup: /web, class: latency-sensitive}]\n"
        f"network:\n  devices: [{{{device}}}]\n{rest}"
    )
    found = load(path).network
    assert found is not None
    return found


def opened(config: NetworkConfig) -> Device:
    with Netlink() as netlink:
        return open_device(netlink, config.devices[0], config)


def refusal(config: NetworkConfig) -> str:
    with pytest.raises(DeviceError) as error:
        opened(config)
    return str(error.value)


def test_the_tree_of_a_link(host: Host, tmp_path: Path) -> None:
    limits = '  limits: [{workload: "etl*", egress: 20mbit}]\n'
    config = network(tmp_path, "name: up0, egress: 200mbit, ingress: 100mbit", limits)
    device = opened(config)
    assert device.target.id == host.ifindex("up0") and device.target.path == "up0"
    assert device.facts.egress_bytes_per_s == 200 * MBIT
    assert device.unlimited == f"{200 * MBIT} {100 * MBIT}"
    assert device.tree is not None and device.tree.egress and device.tree.ingress
    assert device.tree.egress.limits == (20 * MBIT,)
    assert device.tree.ingress.limits == (100 * MBIT,)


def test_the_reported_speed_of_a_link_is_reduced(host: Host, tmp_path: Path) -> None:
    # The driver of veth reports 10 Gbit/s.
    device = opened(network(tmp_path, "name: up0, ingress: off"))
    assert device.facts.egress_bytes_per_s == 0.95 * 10_000 * MBIT
    assert device.facts.ingress_bytes_per_s == 0
    assert device.unlimited.endswith(" 0")
    host.ip(host.name, "link", "add", "slow", "type", "ifb")
    assert "does not report a speed" in refusal(network(tmp_path, "name: slow"))


def test_devices_that_cannot_be_shaped(host: Host, tmp_path: Path) -> None:
    assert "no such device" in refusal(network(tmp_path, "name: up1, egress: 1gbit"))
    host.ip(host.name, "link", "set", "up0", "txqueuelen", "0")
    config = network(tmp_path, "name: up0, egress: 1gbit, ingress: off")
    assert "txqueuelen" in refusal(config)
    host.ip(host.name, "link", "set", "up0", "txqueuelen", "1000")
    opened(config)
    host.inside(host.name, "tc", "qdisc", "add", "dev", "up0", "root", "handle", "9:", "pfifo")
    assert "pfifo 9: belongs to another program" in refusal(config)
    assert "up0: pfifo 9: belongs to another program" in find_links().detail


def test_many_queues_only_when_forced(host: Host, tmp_path: Path) -> None:
    host.ip(host.name, "link", "add", "many", "numtxqueues", "4", "type", "ifb")
    host.ip(host.name, "link", "set", "many", "up")
    name = "name: many, egress: 1gbit, ingress: off"
    assert "several queues (mq)" in refusal(network(tmp_path, name))
    opened(network(tmp_path, name, "  multiqueue: force\n"))
    assert "many: mq, only with multiqueue: force" in find_links().detail


def test_an_adopted_class(host: Host, tmp_path: Path) -> None:
    name = 'name: up0, egress: 1gbit, ingress: off, best_effort_class: "1:30"'
    config = network(tmp_path, name, "  existing_qdisc: adopt\n")
    assert "no HTB class 1:30" in refusal(config)
    tc = ("tc", "class", "add", "dev", "up0", "parent", "1:", "classid", "1:30", "htb")
    host.inside(host.name, "tc", "qdisc", "add", "dev", "up0", "root", "handle", "1:", "htb")
    host.inside(host.name, *tc, "rate", "8mbit", "ceil", "80mbit")
    device = opened(config)
    assert device.tree is None
    assert device.unlimited == f"{80 * MBIT} 0"
    assert device.target.path == "up0/1:30"


def test_the_host_ends_of_veths(host: Host) -> None:
    def found(namespace: str) -> list[str] | None:
        with process_in(namespace) as pid, Netlink() as netlink:
            ends = host_ends(netlink, pid)
            return None if ends is None else [end.name for end in ends]

    assert found(host.pods["web"]) == ["veth-web"]
    assert found(host.pods["batch"]) == ["veth-batch"]
    assert found(host.name) is None
    # A pod that makes links of its own cannot claim the veth of another pod: these links have
    # ifindexes that exist on the host as well.
    pod = host.pods["web"]
    for number in range(2):
        host.ip(pod, "link", "add", f"a{number}", "type", "veth", "peer", f"b{number}")
    host.ip(pod, "link", "set", "b0", "netns", host.wire)
    assert found(pod) == ["veth-web"]
    with Netlink() as netlink:
        assert host_ends(netlink, 2**22 + 1) == ()
