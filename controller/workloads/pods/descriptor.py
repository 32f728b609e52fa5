# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""PURE: Katalyst's ServiceProfileDescriptors: whose they are, and what they say as sweet points.

The numbers are targets of Katalyst's own indicators, two of which are measured here as well. Who
may write the objects chooses every field of them, so what is kept is bounded.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
import re
from typing import Any, NamedTuple

from controller.config.indicator import read_indicator
from controller.config.models import IndicatorModel
from controller.config.profile_set import DERIVED_SEPARATOR
from controller.core.model import IndicatorName
from controller.core.settings import IndicatorSpec, Profile
from controller.core.units import format_duration
from controller.workloads.pods.identity import controller_of
from controller.workloads.pods.pod import Pod
from controller.workloads.pods.untrusted_json import items, mapping, shown

__all__ = (
    "Descriptor",
    "DescriptorError",
    "DescriptorIndex",
    "Point",
    "derived_profile",
    "derived_profile_name",
    "parse_descriptor",
)

# Katalyst's controller writes it to the pods of a workload that it made a descriptor for.
_NAME_KEY = "spd.katalyst.kubewharf.io/name"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_KIND = re.compile(r"[A-Za-z][A-Za-z0-9]{0,62}")
_MOST_INDICATORS = 16
_MOST_LEVELS = 8
# Nothing that is measured here comes near; and a number of that size can still be written out.
_MOST = 1e6
# The first that is there counts, as in Katalyst's advisor (getPodIndicatorTarget of a region).
_LEVELS = ("UpperBound", "LowerBound")
_NOT_MEASURED = "not measured here"
_NO_COUNTERPART = {
    "cpu_usage_ratio": "how busy CPUs are is not what a service suffers",
    "mem_access_read_lat": _NOT_MEASURED,
    "mem_access_write_lat": _NOT_MEASURED,
    "mem_l3_miss_lat": _NOT_MEASURED,
}


class DescriptorError(Exception):
    """An object that cannot be used; the message is one line and safe to print."""


class Point(NamedTuple):
    """A sweet point in our indicator's unit; ``origin`` is what it was made of."""

    indicator: IndicatorName
    value: float
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """A ServiceProfileDescriptor of the pods whose controller is ``kind`` ``target``.

    ``problems`` tell what of it does not count, and why.
    """

    namespace: str
    name: str
    kind: str
    target: str
    points: tuple[Point, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """``namespace/name``, for people."""
        return f"{self.namespace}/{self.name}"


class DescriptorIndex:
    """All descriptors that count, by what pods say of themselves."""

    def __init__(self, descriptors: Iterable[Descriptor] = ()) -> None:
        ordered = sorted(descriptors, key=attrgetter("namespace", "name"), reverse=True)
        self._by_name = {(each.namespace, each.name): each for each in ordered}
        # Of two for one controller, which Katalyst does not make, the first by name.
        self._by_target = {(each.namespace, each.kind, each.target): each for each in ordered}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._by_name)

    def find(self, pod: Pod) -> Descriptor | None:
        """Return the descriptor of *pod*: the one that it names, else that of its controller."""
        if not self._by_name:
            return None
        named = self._by_name.get((pod.namespace, pod.annotations.get(_NAME_KEY, "")))
        owner = controller_of(pod)
        if named is not None or owner is None:
            return named
        return self._by_target.get((pod.namespace, owner.kind, owner.name))


def parse_descriptor(raw: Mapping[str, Any]) -> Descriptor:
    """Return the descriptor in *raw*, an object as the API server sends it.

    :raises DescriptorError: it does not say which one it is, or whose.
    """
    meta, spec = mapping(raw, "metadata"), mapping(raw, "spec")
    namespace, name = (_checked(meta, key, _NAME, "descriptor") for key in ("namespace", "name"))
    what = f"descriptor {namespace}/{name}"
    reference = mapping(spec, "targetRef")
    found = items(spec, "systemIndicator")
    read = [_read(each) for each in found[:_MOST_INDICATORS]]
    problems = [each for each in read if isinstance(each, str)]
    if len(found) > _MOST_INDICATORS:
        problems.append(f"more than {_MOST_INDICATORS} indicators; the others are not read")
    return Descriptor(
        namespace=namespace,
        name=name,
        kind=_checked(reference, "kind", _KIND, what),
        target=_checked(reference, "name", _NAME, what),
        points=tuple(each for each in read if isinstance(each, Point)),
        problems=tuple(problems),
    )


def derived_profile_name(profile: str, descriptor: Descriptor) -> str:
    """Return the name of *profile* with the sweet points of *descriptor*."""
    return f"{profile}{DERIVED_SEPARATOR}{descriptor.key}"


def derived_profile(
    profile: Profile, descriptor: Descriptor, tick_ns: int
) -> tuple[Profile, tuple[str, ...]]:
    """Return *profile* with the sweet points of *descriptor*, and what of these cannot be used.

    An indicator that the profile does not have is added, with everything else as if a profile
    gave nothing but its sweet point. *tick_ns* is the control period.
    """
    specs = {spec.name: spec for spec in profile.indicators}
    problems = []
    for point in descriptor.points:
        spec = specs.get(point.indicator) or _new_spec(point, tick_ns)
        if point.value <= spec.resolution:
            problems.append(f"{point.origin}: less than can be told apart ({spec.resolution:g})")
        elif spec.window_ns < tick_ns:
            window = format_duration(spec.window_ns)
            problems.append(f"{point.origin}: the tick is longer than the window of {window}")
        else:
            specs[point.indicator] = replace(spec, sweet_point=point.value, bins=())
    name = derived_profile_name(profile.name, descriptor)
    return replace(profile, name=name, indicators=tuple(specs.values())), tuple(problems)


def _new_spec(point: Point, tick_ns: int) -> IndicatorSpec:
    # The resolution is compared by who calls.
    model = IndicatorModel(sweet_point=f"{point.value:.6f}")
    spec = read_indicator(point.indicator, model, tick_ns, lambda loc, text: None)
    assert spec is not None  # what is written above can be read
    return spec


def _read(indicator: Mapping[str, Any]) -> Point | str:
    """Return what *indicator* says, or why that does not count."""
    name = indicator.get("name")
    if name not in ("cpi", "cpu_sched_wait"):
        known = isinstance(name, str) and name in _NO_COUNTERPART
        return f"{shown(name)}: {_NO_COUNTERPART[str(name)] if known else 'not known'}"
    levels = {}
    for each in items(indicator, "indicators")[:_MOST_LEVELS]:
        level = each.get("indicatorLevel")
        if level in _LEVELS:
            levels[level] = each.get("value")
    if not levels:
        return f"{name}: neither {' nor '.join(_LEVELS)}"
    level = next(each for each in _LEVELS if each in levels)
    value = _number(levels[level])
    if value is None:
        return f"{name}: {level} must be a number above 0 and at most {_MOST:g}"
    origin = f"{name} {level} {value:g}"
    if name == "cpi":
        return Point(IndicatorName.CPI, value, origin)
    # Milliseconds in which tasks wait, in a second of a CPU: so many are queued on the average.
    # Where a CPU never idles, one of them runs meanwhile, and that is the share of its time that
    # a task waits. Where it idles, they wait a larger share, so this is never laxer.
    queued = value / 1000
    return Point(IndicatorName.WAIT_RATIO, queued / (1 + queued), origin)


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    # NaN is not greater than 0 either.
    return float(value) if 0 < value <= _MOST else None


def _checked(raw: Mapping[str, Any], key: str, pattern: re.Pattern[str], what: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise DescriptorError(f"{what}: {shown(value)} is not a {key}")
    return value
