# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``network:``: links to shape, shares of the tiers, limits of workloads."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from controller.config.fields import Quantity, Strict, raw_default
from controller.config.yaml_document import Document, Loc
from controller.core.model import QosClass
from controller.core.units import UnitError, format_bandwidth, parse_bandwidth, parse_ratio

__all__ = (
    "AUTO",
    "Amount",
    "DeviceConfig",
    "LimitRule",
    "NetworkConfig",
    "NetworkModel",
    "Tier",
    "build_network",
    "tier_rates",
)

AUTO = "auto"
_PATTERN = r"[0-9]+(\.[0-9]+)? *([kmg]bit|%)"
# Classes of limits are numbered below the class of the link, 0x100 (actuators.tc.shape).
_MAX_LIMITS = 250
_TIERS = (QosClass.SYSTEM, QosClass.LS, QosClass.BE)


class Amount(NamedTuple):
    """A bandwidth in bytes per second, or as a ratio of the link's speed."""

    bytes_per_s: int | None = None
    ratio: float | None = None

    def of(self, link_bytes_per_s: int) -> int:
        """Return the bandwidth in bytes per second on a link of *link_bytes_per_s*."""
        if self.bytes_per_s is not None:
            return self.bytes_per_s
        assert self.ratio is not None
        return round(self.ratio * link_bytes_per_s)


class PerDirection(NamedTuple):
    """One amount for each direction."""

    egress: Amount
    ingress: Amount


class Tier(NamedTuple):
    """The bandwidth that a tier is guaranteed, and its maximum with bandwidth that it borrows."""

    guaranteed: PerDirection
    most: PerDirection


class LimitRule(NamedTuple):
    """The common limit of the best-effort workloads whose names match the glob ``workload``.

    In bytes per second; ``None``: no limit in that direction.
    """

    workload: str
    egress: int | None
    ingress: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """A link to shape. A speed is in bytes per second, ``auto``, or ``None``: not shaped.

    ``best_effort_class`` is a class of a foreign HTB qdisc. The agent then changes only the
    ceiling of that class and nothing else on the device.
    """

    name: str
    egress: int | Literal["auto"] | None
    ingress: int | Literal["auto"] | None
    tiers: Mapping[QosClass, Tier]
    best_effort_class: str | None
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """The checked section.

    ``pod_limits`` is the number of classes for pods with a limit of their own. ``mark_mask`` is
    the bits of the packet mark in which the class is encoded. ``force_multiqueue``: devices with
    several transmit queues are shaped as well.
    """

    devices: tuple[DeviceConfig, ...]
    limits: tuple[LimitRule, ...]
    pod_limits: int
    mark_mask: int
    force_multiqueue: bool


def _amount(text: object) -> Amount:
    if text is None or isinstance(text, bool | list | dict):
        raise PydanticCustomError(
            "unit", "must be a bandwidth such as 200mbit, or a share such as 20%"
        )
    try:
        if str(text).strip().endswith("%"):
            ratio = parse_ratio(str(text))
            if ratio > 1:
                raise PydanticCustomError("range", "must be between 0% and 100%")
            return Amount(ratio=ratio)
        return Amount(bytes_per_s=parse_bandwidth(str(text)))
    except UnitError as error:
        reason = f"{error}, or a share of the link such as 20%"
        raise PydanticCustomError("unit", "{reason}", {"reason": reason}) from None


def _per_direction(value: object) -> PerDirection:
    if not isinstance(value, dict):
        return PerDirection(_amount(value), _amount(value))
    if set(value) != {"egress", "ingress"}:
        raise PydanticCustomError("unit", "must be one amount, or a mapping of egress and ingress")
    return PerDirection(_amount(value["egress"]), _amount(value["ingress"]))


_TEXT_AMOUNT: dict[str, Any] = {"type": "string", "pattern": f"^{_PATTERN}$"}
_PerDirection = Annotated[
    Any,
    BeforeValidator(_per_direction),
    WithJsonSchema(
        {
            "anyOf": [
                _TEXT_AMOUNT,
                {
                    "type": "object",
                    "properties": {"egress": _TEXT_AMOUNT, "ingress": _TEXT_AMOUNT},
                    "required": ["egress", "ingress"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
_BANDWIDTH = Quantity(parse_bandwidth, r"^[0-9]+(\.[0-9]+)? *[kmg]bit$", "8kbit", "1000gbit")


def _speed(value: object) -> object:
    # A plain "off" is text, see yaml_document. Anything but the two words must be a quantity.
    if value in (AUTO, "off"):
        return value
    return int(_BANDWIDTH.read(value))


_Speed = Annotated[
    Any,
    BeforeValidator(_speed),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": [AUTO, "off"]},
                {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? *[kmg]bit$"},
            ]
        }
    ),
]


class TierModel(Strict):
    """Guaranteed and maximum bandwidth of a tier, absolute or as a share of the link."""

    guaranteed: _PerDirection
    """Bandwidth that the tier always has, such as 200mbit or 20%, or a mapping of egress and
    ingress."""
    max: _PerDirection = raw_default("100%")
    """Most bandwidth with what other tiers lend, in the same form."""


class TiersModel(Strict):
    """The three tiers; bandwidth that one does not use is lent to the others in this order."""

    system: TierModel = raw_default({"guaranteed": "10%"})
    """Tier of system work and of packets that belong to no workload; it borrows first."""
    latency_sensitive: Annotated[TierModel, Field(alias="latency-sensitive")] = raw_default(
        {"guaranteed": "60%"}
    )
    """Tier of the services; it borrows second."""
    best_effort: Annotated[TierModel, Field(alias="best-effort")] = raw_default(
        {"guaranteed": "5%"}
    )
    """Tier of best-effort work; it borrows last, and its maximum is what a squeeze lowers."""


class DeviceModel(Strict):
    """A link: its speeds, and tiers that replace the common ones."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][^/\s]{0,14}$")]
    """Name of the link, such as eth0."""
    egress: _Speed = AUTO
    """Speed of what the link sends, a little below the real bottleneck; auto is 95 % of the
    link's speed."""
    ingress: _Speed = AUTO
    """Speed of what the link receives, in the same form; off leaves the direction alone."""
    tiers: TiersModel | None = None
    """Tiers of this link instead of the common ones."""
    best_effort_class: Annotated[str, Field(pattern=r"^[0-9a-f]{1,4}:[0-9a-f]{1,4}$")] | None = None
    """Class of another program's HTB whose ceiling is lowered, with existing_qdisc: adopt."""


class LimitModel(Strict):
    """A common limit, within the best-effort tier, of the workloads that match a glob."""

    workload: Annotated[str, Field(min_length=1, max_length=253)]
    """Glob of the names of the best-effort workloads that share the limit."""
    egress: Annotated[int, _BANDWIDTH] | None = None
    """Most that they send together, such as 200mbit; without it that direction has no limit."""
    ingress: Annotated[int, _BANDWIDTH] | None = None
    """Most that they receive together, such as 200mbit; without it that direction has no limit."""


class NetworkModel(Strict):
    """Links to shape, shares of the tiers, and limits of workloads."""

    devices: Annotated[list[DeviceModel], Field(min_length=1)]
    """Links to shape."""
    tiers: TiersModel = raw_default({})
    """Tiers of all links that have none of their own."""
    limits: Annotated[list[LimitModel], Field(max_length=250)] = raw_default([])
    """Common limits, within the best-effort tier, of workloads by name."""
    pod_limits: Annotated[int, Field(ge=0, le=250)] = 0
    """Classes made in advance for best-effort pods with a bandwidth limit of their own."""
    mark_mask: Annotated[str, Field(pattern=r"^0x[0-9a-fA-F]{1,8}$")] = "0xf"
    """Bits of the packet mark that name a packet's class; choose bits that no other program
    uses."""
    existing_qdisc: Literal["refuse", "adopt"] = "refuse"
    """What to do with a link that another program shapes: refuse it, or adopt one of its
    classes."""
    multiqueue: Literal["refuse", "force"] = "refuse"
    """What to do with a link of several queues: refuse it, or force one queue, which costs
    throughput."""


def build_network(
    document: Document, model: NetworkModel | None, problems: list[str]
) -> NetworkConfig | None:
    """Return the checked section, ``None`` without it; conflicts are added to *problems*."""
    if model is None:
        return None
    devices = tuple(_device(document, model, index) for index in range(len(model.devices)))
    limits = tuple(LimitRule(one.workload, one.egress, one.ingress) for one in model.limits)
    problems += [
        document.problem(("network", *at), text) for at, text in _find_conflicts(model, devices)
    ]
    return NetworkConfig(
        devices=devices,
        limits=limits,
        pod_limits=model.pod_limits,
        mark_mask=int(model.mark_mask, 16),
        force_multiqueue=model.multiqueue == "force",
    )


def tier_rates(
    device: DeviceConfig, *, ingress: bool, link: int
) -> dict[QosClass, tuple[int, int]]:
    """Return (guaranteed, maximum) of each tier on a link of *link* bytes per second.

    Both are in bytes per second.

    :raises ValueError: the tiers do not fit on the link; the message names the tier.
    """
    rates = {}
    for qos, tier in device.tiers.items():
        guaranteed, most = ((b.ingress if ingress else b.egress).of(link) for b in tier)
        if not 0 < most <= link:
            raise ValueError(f"{qos}: max must be above 0 and at most {format_bandwidth(link)}")
        if guaranteed > most:
            raise ValueError(f"{qos}: guaranteed is more than max")
        rates[qos] = (guaranteed, most)
    if sum(guaranteed for guaranteed, _ in rates.values()) > link:
        raise ValueError(f"the sum of guaranteed is more than the link's {format_bandwidth(link)}")
    return rates


def _device(document: Document, model: NetworkModel, index: int) -> DeviceConfig:
    one = model.devices[index]
    tiers = one.tiers or model.tiers
    found = (tiers.system, tiers.latency_sensitive, tiers.best_effort)
    return DeviceConfig(
        name=one.name,
        egress=None if one.egress == "off" else one.egress,
        ingress=None if one.ingress == "off" else one.ingress,
        tiers={qos: Tier(t.guaranteed, t.max) for qos, t in zip(_TIERS, found, strict=True)},
        best_effort_class=one.best_effort_class,
        origin=f"{document.origin}:{document.lines[('network', 'devices', index)]}",
    )


def _find_conflicts(
    model: NetworkModel, devices: tuple[DeviceConfig, ...]
) -> Iterator[tuple[Loc, str]]:
    adopt = model.existing_qdisc == "adopt"
    for index, device in enumerate(devices):
        loc: Loc = ("devices", index)
        if device.name in {other.name for other in devices[:index]}:
            yield (*loc, "name"), f"{device.name!r} is listed twice"
        if device.best_effort_class is not None and not adopt:
            yield (*loc, "best_effort_class"), "is only for existing_qdisc: adopt"
        if device.best_effort_class is not None and device.ingress is not None:
            yield (*loc, "ingress"), "must be off on a device with best_effort_class"
        if device.egress is None and device.ingress is None:
            yield loc, "shapes neither direction: egress and ingress are both off"
        for name, speed in (("egress", device.egress), ("ingress", device.ingress)):
            if isinstance(speed, int):
                try:
                    tier_rates(device, ingress=name == "ingress", link=speed)
                except ValueError as error:
                    yield (*loc, name), str(error)
    if adopt and all(device.best_effort_class is None for device in devices):
        yield ("existing_qdisc",), "adopt needs a device with best_effort_class"
    yield from _find_mask_conflicts(model)
    for index, limit in enumerate(model.limits):
        if limit.egress is None and limit.ingress is None:
            yield ("limits", index), "limits neither direction: set egress or ingress"


def _find_mask_conflicts(model: NetworkModel) -> Iterator[tuple[Loc, str]]:
    mask = int(model.mark_mask, 16)
    if not re.fullmatch("0b1+0*", bin(mask)):
        yield ("mark_mask",), "must be one run of bits such as 0xf or 0xf00"
        return
    limits = len(model.limits) + model.pod_limits
    values = len(_TIERS) + limits
    room = mask // (mask & -mask)
    if values > room:
        yield (
            ("mark_mask",),
            f"has room for {room} classes, and there are {values} (three tiers and the limits)",
        )
    if limits > _MAX_LIMITS:
        yield ("pod_limits",), f"together with limits must be at most {_MAX_LIMITS}"
