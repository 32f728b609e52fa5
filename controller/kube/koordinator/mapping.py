# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Mapping of Koordinator's settings to those of sweetpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field
import math
import re
from typing import Any

from controller.kube.koordinator.source import Field, Fields, short_json
from controller.kube.koordinator.unmapped import HOST_APPS, QOS, SYSTEM, THRESHOLDS, why_not

__all__ = ("Facts", "Imported", "translate")

# Default of koordlet (pkg/util/sloconfig).
_SUPPRESS_PERCENT = 65

_CLASSES = {
    "LSE": "latency-sensitive",
    "LSR": "latency-sensitive",
    "LS": "latency-sensitive",
    "BE": "best-effort",
    "SYSTEM": "system",
}
_TIERS = (("systemClass", "system"), ("lsClass", "latency-sensitive"), ("beClass", "best-effort"))
# The values of the label koordinator.sh/qosClass of each class (GetPodResctrlGroup of koordlet).
_RESCTRL_CLASSES = {"lsrClass": ("LSR", "LSE"), "lsClass": ("LS",)}
_PATH = re.compile(r"[A-Za-z0-9@:._/-]+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
# Bits per second as a Kubernetes quantity, with the suffixes that are usual for links.
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kMG]?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts of the host to which shares are relative; ``None``: not known.

    The number of CPUs, the number of L3 cache ways, the name of the network device, the labels of
    the node.
    """

    cpus: int | None = None
    cache_ways: int | None = None
    device: str | None = None
    labels: Mapping[str, str] | None = None


@dataclass(slots=True)
class Imported:
    """Contents of the two files as plain data, and lines for their comments.

    ``notes`` name the source of each imported value, ``missing`` the fields that were not imported
    with the reasons.
    """

    config: dict[str, Any] = field(default_factory=dict)
    profile: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def miss(self, at: Field, value: object, reason: str) -> None:
        """Record that the field *at* is not imported."""
        path = short_json("/".join(at))[1:-1]
        self.missing.append(f"{path} = {short_json(value)}: {reason}")


def translate(fields: Fields, facts: Facts) -> Imported:
    """Return the contents of the files for *fields*."""
    result = Imported()
    result.notes += [
        f"{short_json(key)[1:-1]}: what is for nodes with such labels, {short_json(name)}"
        for key, name in fields.chosen.items()
    ]
    _suppress(fields, facts, result)
    _resctrl(fields, facts, result)
    _resctrl_classes(fields, result)
    _sched(fields, result)
    _network(fields, facts, result)
    _iocost(fields, result)
    _host_applications(fields, result)
    for at, value in fields.remaining:
        result.miss(at, value, why_not(at))
    return result


def _suppress(fields: Fields, facts: Facts, result: Imported) -> None:
    at = (THRESHOLDS, "cpuSuppressThresholdPercent")
    enabled, percent = fields.take(THRESHOLDS, "enable"), fields.take(*at)
    if enabled is not True:
        if percent is not None or enabled is not None:
            result.miss(at, percent, f"disabled in Koordinator (enable is {short_json(enabled)})")
        return
    given = _SUPPRESS_PERCENT if percent is None else percent
    if not _is_percent(given):
        result.miss(at, percent, "not a percentage")
    elif facts.cpus is None:
        text = f"leaves {100 - given} % of a node's CPUs alone; with --cpus that becomes 'reserve'"
        result.miss(at, given, text)
    else:
        reserve = facts.cpus * (100 - given) * 10
        result.config["reserve"] = f"{reserve}mcpu"
        default = "; its default" if percent is None else ""
        result.notes.append(f"reserve: {100 - given} % of {facts.cpus} CPUs ({at[1]}{default})")


def _resctrl(fields: Fields, facts: Facts, result: Imported) -> None:
    at = (QOS, "beClass", "resctrlQOS")
    found = _take_enabled(fields, at, result)
    if found is None:
        return
    knobs = result.profile.setdefault("knobs", {})
    bandwidth = found.pop("mbaPercent", None)
    if bandwidth is not None and _is_percent(bandwidth) and bandwidth >= 1:
        knobs["resctrl.mb"] = {"floor": f"{bandwidth}%"}
        result.notes.append(
            "knobs resctrl.mb: the floor is the fixed value of Koordinator (mbaPercent)"
        )
    elif bandwidth is not None:
        result.miss((*at, "mbaPercent"), bandwidth, "not a percentage")
    start, end = (found.pop(f"catRange{end}Percent", None) for end in ("Start", "End"))
    both = {"catRangeStartPercent": start, "catRangeEndPercent": end}
    if start is not None or end is not None:
        start, end = (0 if start is None else start), (100 if end is None else end)
        if not (_is_percent(start) and _is_percent(end) and start < end):
            result.miss(at, both, "not a range")
        elif facts.cache_ways is None:
            text = "a share of the cache's ways; with --cache-ways that becomes a floor"
            result.miss(at, both, text)
        else:
            ends = [math.ceil(facts.cache_ways * each / 100) for each in (start, end)]
            knobs["resctrl.l3"] = {"floor": max(1, ends[1] - ends[0])}
            result.notes.append(
                f"knobs resctrl.l3: the floor is the fixed number of ways of {facts.cache_ways}; "
                "which ways is not configurable (catRange*Percent)"
            )
    for key, value in found.items():
        result.miss((*at, key), value, "not known to this import")
    if not knobs:
        del result.profile["knobs"]


def _resctrl_classes(fields: Fields, result: Imported) -> None:
    """Translate the fixed limits of services to classes of resctrl."""
    for group, values in _RESCTRL_CLASSES.items():
        at = (QOS, group, "resctrlQOS")
        found = _take_enabled(fields, at, result)
        if found is None:
            continue
        begin, end, bandwidth = (
            found.pop(key, default)
            for key, default in (
                ("catRangeStartPercent", 0),
                ("catRangeEndPercent", 100),
                ("mbaPercent", 100),
            )
        )
        shares = begin, end, bandwidth
        if not (all(map(_is_percent, shares)) and begin < end and bandwidth):
            result.miss(at, shares, "not a range and a percentage")
        else:
            name = group.removesuffix("Class").upper()
            classes = result.config.setdefault("resctrl", {}).setdefault("classes", {})
            classes[name] = {
                "l3": [f"{begin}%", f"{end}%"],
                "mb": f"{bandwidth}%",
                "koordinator": list(values),
            }
            result.notes.append(f"resctrl.classes {name}: as in Koordinator (resctrlQOS)")
        for key, value in found.items():
            result.miss((*at, key), value, "not known to this import")


def _take_enabled(fields: Fields, at: Field, result: Imported) -> dict[str, Any] | None:
    """Return the settings at *at*; ``None`` if there are none, or they are disabled."""
    found = fields.take_group(*at)
    if found.pop("enable", None) is True:
        return found
    for key, value in found.items():
        result.miss((*at, key), value, "disabled in Koordinator")
    return None


def _sched(fields: Fields, result: Imported) -> None:
    at = (QOS, "beClass", "cpuQOS")
    enabled, idle = fields.take(*at, "enable"), fields.take(*at, "schedIdle")
    if enabled is True and idle == 1:
        result.profile["sched_idle"] = True
        result.notes.append("sched_idle: as in Koordinator (schedIdle of beClass)")
    elif idle is not None:
        why = "disabled in Koordinator" if enabled is not True else "not used in Koordinator"
        text = f"{why}; the default of sweetpoint is on (sched_idle in the profile)"
        result.miss((*at, "schedIdle"), idle, text)
    policy = fields.take(QOS, "policies", "cpuPolicy")
    if policy == "coreSched":
        result.config["core_scheduling"] = {"mode": "auto"}
        result.notes.append(
            "core_scheduling: mode auto, on where measurements show a benefit (cpuPolicy)"
        )
    elif policy is not None:
        result.miss((QOS, "policies", "cpuPolicy"), policy, "sched_idle is used")


def _network(fields: Fields, facts: Facts, result: Imported) -> None:
    total = fields.take(SYSTEM, "totalNetworkBandwidth")
    tiers = {}
    for group, name in _TIERS:
        at = (QOS, group, "networkQOS")
        found = _take_enabled(fields, at, result)
        if found is None:
            continue
        if (tier := _tier(found)) is None:
            result.miss(at, found, "not amounts that a tier can have")
        else:
            tiers[name] = tier
    if not tiers:
        if total is not None:
            result.miss(
                (SYSTEM, "totalNetworkBandwidth"), total, "no class is shaped in Koordinator"
            )
    elif facts.device is None:
        text = "with --device this becomes the section network"
        result.miss((QOS, "*", "networkQOS"), tiers, text)
        result.miss((SYSTEM, "totalNetworkBandwidth"), total, text)
    else:
        speed = None if total is None else _amount(total, share=False)
        if total is not None and speed is None:
            result.miss((SYSTEM, "totalNetworkBandwidth"), total, "not an amount")
        device = {"name": facts.device, "egress": speed or "auto", "ingress": speed or "auto"}
        result.config["network"] = {"devices": [device], "tiers": tiers}
        result.notes.append("network: request is what is guaranteed, limit the most (networkQOS)")


def _tier(found: Mapping[str, object]) -> dict[str, dict[str, str]] | None:
    tier: dict[str, dict[str, str]] = {}
    for word, name, missing in (("Request", "guaranteed", 0), ("Limit", "max", 100)):
        for way in ("egress", "ingress"):
            amount = _amount(found.get(f"{way}{word}", missing), share=True)
            if amount is None:
                return None
            tier.setdefault(name, {})[way] = amount
    known = {f"{way}{word}" for way in ("egress", "ingress") for word in ("Request", "Limit")}
    return tier if set(found) <= known else None


def _iocost(fields: Fields, result: Imported) -> None:
    """Translate the settings of disks of the root cgroup, with which koordlet enables iocost."""
    at = (QOS, "cgroupRoot", "blkioQOS")
    found = _take_enabled(fields, at, result)
    if found is None:
        return
    result.config["io"] = {"iocost": "auto"}
    result.notes.append("io.iocost: auto, so that weights of disks count (cgroupRoot/blkioQOS)")
    for key, value in found.items():
        result.miss((*at, key), value, why_not((*at, key)))


def _amount(value: object, *, share: bool) -> str | None:
    # A number is a share in percent if *share* is set, otherwise bits per second.
    if share and _is_percent(value):
        return f"{value}%"
    match = _QUANTITY.fullmatch(value if isinstance(value, str) else "" if share else str(value))
    if match is None:
        return None
    bits = float(match[1]) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[match[2]]
    return f"{bits / 1000:.0f}kbit" if 8000 <= bits <= 1e12 else None


def _host_applications(fields: Fields, result: Imported) -> None:
    applications = fields.take(HOST_APPS, "applications")
    for each in applications if isinstance(applications, list) else ():
        workload = _workload(each) if isinstance(each, dict) else None
        if workload is None:
            text = "not a workload of a plain cgroup with a valid name and a known class"
            result.miss((HOST_APPS, "applications"), each, text)
            continue
        result.config.setdefault("workloads", []).append(workload)
        result.notes.append(f"workloads {workload['name']}: {HOST_APPS}")


def _workload(application: Mapping[str, Any]) -> dict[str, str] | None:
    path, qos = application.get("cgroupPath"), application.get("qos")
    name = str(application.get("name"))
    if not isinstance(path, dict) or path.get("base", "CgroupRoot") != "CgroupRoot":
        return None
    parts = [str(path.get(key) or "").strip("/") for key in ("parentDir", "relativePath")]
    cgroup = "/" + "/".join(filter(None, parts))
    known = isinstance(qos, str) and qos in _CLASSES
    bad = cgroup == "/" or not _PATH.fullmatch(cgroup) or ".." in cgroup.split("/")
    if bad or not known or not _NAME.fullmatch(name):
        return None
    return {"name": name, "cgroup": cgroup, "class": _CLASSES[str(qos)]}


def _is_percent(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 100
