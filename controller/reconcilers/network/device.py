# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A link of the configuration on this host: its speed, and the qdisc tree that shapes it."""

import array
from dataclasses import dataclass
import fcntl
import socket
import struct

from actuators.base import RefusedError
from actuators.tc.ceiling import class_id
from actuators.tc.netlink import Link, Netlink, network_namespace
from actuators.tc.shape import Shape, Tree
from actuators.tc.tree import refuse_foreign
from controller.config.sections.network import AUTO, DeviceConfig, NetworkConfig, tier_rates
from controller.core.model import KnobValue, QosClass, Target, TargetKind
from controller.core.settings import LinkFacts

__all__ = (
    "Device",
    "DeviceError",
    "link_speed",
    "open_device",
)

_SIOCETHTOOL, _ETHTOOL_GSET = 0x8946, 1  # include/uapi/linux/sockios.h, ethtool.h
_BYTES_PER_S = 125_000  # of one Mbit/s
_UNKNOWN = (0, 0xFFFF, 0xFFFFFFFF)


def link_speed(name: str) -> int | None:
    """Return the speed of a link in bytes per second; ``None``: its driver does not report one."""
    # struct ethtool_cmd, 44 bytes: the halves of the speed in Mbit/s are at 12 and 28.
    command = array.array("B", struct.pack("=I40x", _ETHTOOL_GSET))
    request = struct.pack("16sP16x", name.encode(), command.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as inet:
        try:
            fcntl.ioctl(inet, _SIOCETHTOOL, request)
        except OSError:
            return None
    (low,), (high,) = struct.unpack_from("=H", command, 12), struct.unpack_from("=H", command, 28)
    mbit = high << 16 | low
    return None if mbit in _UNKNOWN else mbit * _BYTES_PER_S


# Packets must queue in the tiers of the tree and not in the card or the switch, so the tree sends
# a little less than the link can.
_AUTO_SHARE = 0.95


class DeviceError(Exception):
    """A link that cannot be shaped as it is; the message has the reason and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A link to shape, or a class of a foreign HTB qdisc whose ceiling is set.

    ``tree`` is the qdisc tree to make, ``None`` for an adopted class. ``unlimited`` is the value of
    ``tc.ceiling`` (bytes per second, egress and ingress) without a limit beyond the configuration.
    """

    target: Target
    tree: Tree | None
    facts: LinkFacts
    unlimited: KnobValue


def open_device(netlink: Netlink, device: DeviceConfig, config: NetworkConfig) -> Device:
    """Return the link of *device* with its tree; nothing is changed on the host.

    :raises DeviceError: the link does not exist or cannot be shaped.
    """
    link = netlink.find(device.name)
    if link is None:
        raise DeviceError(f"{device.name}: there is no such device")
    if device.best_effort_class is not None:
        return _adopted(netlink, device, link)
    egress = _speed(device, device.egress)
    ingress = _speed(device, device.ingress)
    _refuse_multiqueue(netlink, link, config)
    if not link.queue_packets:
        # The leaves of HTB would take over the length 0 and drop every packet.
        text = f"its txqueuelen is 0: ip link set {link.name} txqueuelen 1000"
        raise DeviceError(f"{device.name}: {text}")
    tree = Tree(
        None if egress is None else _shape(device, config, egress, ingress=False),
        None if ingress is None else _shape(device, config, ingress, ingress=True),
    )
    try:
        refuse_foreign(netlink, link.ifindex, tree)
    except RefusedError as error:
        raise DeviceError(f"{device.name}: {error}") from None
    target = Target(TargetKind.LINK, network_namespace(), link.ifindex, device.name)
    most = [0 if shape is None else shape.best_effort[1] for shape in tree]
    return Device(
        target=target,
        tree=tree,
        facts=LinkFacts(target, float(egress or 0), float(ingress or 0)),
        unlimited=KnobValue(f"{most[0]} {most[1]}"),
    )


def _adopted(netlink: Netlink, device: DeviceConfig, link: Link) -> Device:
    path = f"{device.name}/{device.best_effort_class}"
    target = Target(TargetKind.LINK, network_namespace(), link.ifindex, path)
    found = netlink.classes(link.ifindex).get(class_id(target))
    if found is None:
        raise DeviceError(f"{device.name}: it has no HTB class {device.best_effort_class} to adopt")
    speed = _speed(device, device.egress)
    return Device(
        target=target,
        tree=None,
        facts=LinkFacts(target, float(speed or found.ceil), 0.0),
        unlimited=KnobValue(f"{found.ceil} 0"),
    )


def _speed(device: DeviceConfig, given: int | str | None) -> int | None:
    if given is None or isinstance(given, int):
        return given
    assert given == AUTO
    speed = link_speed(device.name)
    if speed is None:
        text = "its driver does not report a speed: give egress and ingress a number, or off"
        raise DeviceError(f"{device.name}: {text}")
    return round(speed * _AUTO_SHARE)


def _shape(device: DeviceConfig, config: NetworkConfig, speed: int, *, ingress: bool) -> Shape:
    try:
        tiers = tier_rates(device, ingress=ingress, link=speed)
    except ValueError as error:
        raise DeviceError(f"{device.name}: {error}") from None
    limits = (limit.ingress if ingress else limit.egress for limit in config.limits)
    return Shape(
        speed,
        tiers[QosClass.SYSTEM],
        tiers[QosClass.LS],
        tiers[QosClass.BE],
        tuple(min(limit or speed, speed) for limit in limits),
    )


def _refuse_multiqueue(netlink: Netlink, link: Link, config: NetworkConfig) -> None:
    kinds = [qdisc.kind for qdisc in netlink.qdiscs(link.ifindex)]
    if {"mq", "mqprio"} & set(kinds) and not config.force_multiqueue:
        raise DeviceError(
            f"{link.name}: it has several queues ({kinds[0]}), and one HTB would put all of them "
            "behind one lock, which costs CPU at high packet rates: multiqueue: force accepts that"
        )
