# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Katalyst's ServiceProfileDescriptors: the pods that they apply to, and their sweet points.

Their numbers are targets of Katalyst's own indicators, two of which are measured here as well. The
objects are not trusted, so every field is checked and what is kept of them is bounded.
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

# Katalyst's controller annotates the pods of a workload with the name of its descriptor.
_NAME_KEY = "spd.katalyst.kubewharf.io/name"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_KIND = re.compile(r"[A-Za-z][A-Za-z0-9]{0,62}")
_MAX_INDICATORS = 16
_MAX_LEVELS = 8
# Far above any measured value of the two indicators, and still printable in full.
_MAX_VALUE = 1e6
# The first level that is present counts, as in Katalyst's advisor (getPodIndicatorTarget of a
# region).
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
    """A sweet point in the unit of ``indicator``; ``origin`` is the converted entry, as text."""

    indicator: IndicatorName
    value: float
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """A ServiceProfileDescriptor for the pods with the controller ``kind`` ``target``.

    ``problems`` has the parts of it that are ignored, with the reasons.
    """

    namespace: str
    name: str
    kind: str
    target: str
    points: tuple[Point, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """``namespace/name``, for messages."""
        return f"{self.namespace}/{self.name}"


class DescriptorIndex:
    """Descriptors by their names, and by the controllers of the pods that they apply to."""

    def __init__(self, descriptors: Iterable[Descriptor] = ()) -> None:
        ordered = sorted(descriptors, key=attrgetter("namespace", "name"), reverse=True)
        self._by_name = {(each.namespace, each.name): each for each in ordered}
        # Katalyst makes one descriptor for a controller. Of several, the first by name counts.
        self._by_target = {(each.namespace, each.kind, each.target): each for each in ordered}

    def __len__(self) -> int:
        """Return the number of descriptors."""
        return len(self._by_name)

    def find(self, pod: Pod) -> Descriptor | None:
        """Return the descriptor that *pod* is annotated with, else that of its controller."""
        if not self._by_name:
            return None
        named = self._by_name.get((pod.namespace, pod.annotations.get(_NAME_KEY, "")))
        owner = controller_of(pod)
        if named is not None or owner is None:
            return named
        return self._by_target.get((pod.namespace, owner.kind, owner.name))


def parse_descriptor(raw: Mapping[str, Any]) -> Descriptor:
    """Return the descriptor in *raw*, an object as the API server sends it.

    :raises DescriptorError: its own name or that of the controller is missing or malformed.
    """
    meta, spec = mapping(raw, "metadata"), mapping(raw, "spec")
    namespace, name = (_checked(meta, key, _NAME, "descriptor") for key in ("namespace", "name"))
    what = f"descriptor {namespace}/{name}"
    reference = mapping(spec, "targetRef")
    found = items(spec, "systemIndicator")
    read = [_read(each) for each in found[:_MAX_INDICATORS]]
    problems = [each for each in read if isinstance(each, str)]
    if len(found) > _MAX_INDICATORS:
        problems.append(f"more than {_MAX_INDICATORS} indicators; the others are not read")
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
    """Return *profile* with the sweet points of *descriptor*, and the problems with these.

    An indicator that the profile does not have is added, with the defaults of a profile that sets
    only its sweet point. *tick_ns* is the control period.
    """
    specs = {spec.name: spec for spec in profile.indicators}
    problems = []
    for point in descriptor.points:
        spec = specs.get(point.indicator) or _new_spec(point, tick_ns)
        if point.value <= spec.resolution:
            problems.append(f"{point.origin}: below the resolution ({spec.resolution:g})")
        elif spec.window_ns < tick_ns:
            window = format_duration(spec.window_ns)
            problems.append(f"{point.origin}: the tick is longer than the window of {window}")
        else:
            specs[point.indicator] = replace(spec, sweet_point=point.value, bins=())
    name = derived_profile_name(profile.name, descriptor)
    return replace(profile, name=name, indicators=tuple(specs.values())), tuple(problems)


def _new_spec(point: Point, tick_ns: int) -> IndicatorSpec:
    # The caller compares the sweet point with the resolution.
    model = IndicatorModel(sweet_point=f"{point.value:.6f}")
    spec = read_indicator(point.indicator, model, tick_ns, lambda loc, text: None)
    assert spec is not None  # the text above is valid
    return spec


def _read(indicator: Mapping[str, Any]) -> Point | str:
    """Return the sweet point of *indicator*, or the problem with it."""
    name = indicator.get("name")
    if name not in ("cpi", "cpu_sched_wait"):
        known = isinstance(name, str) and name in _NO_COUNTERPART
        return f"{shown(name)}: {_NO_COUNTERPART[str(name)] if known else 'not known'}"
    levels = {}
    for each in items(indicator, "indicators")[:_MAX_LEVELS]:
        level = each.get("indicatorLevel")
        if level in _LEVELS:
            levels[level] = each.get("value")
    if not levels:
        return f"{name}: neither {' nor '.join(_LEVELS)}"
    level = next(each for each in _LEVELS if each in levels)
    value = _number(levels[level])
    if value is None:
        return f"{name}: {level} must be a number above 0 and at most {_MAX_VALUE:g}"
    origin = f"{name} {level} {value:g}"
    if name == "cpi":
        return Point(IndicatorName.CPI, value, origin)
    # The unit is milliseconds of waiting, of all tasks, per second of a CPU. Divided by 1000 it is
    # the mean number of queued tasks. On a CPU that is never idle one more task is running, so a
    # task waits queued / (1 + queued) of its time. On a CPU that is idle at times the true ratio is
    # larger, so this sweet point is never laxer than Katalyst's.
    queued = value / 1000
    return Point(IndicatorName.WAIT_RATIO, queued / (1 + queued), origin)


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    # NaN is not greater than 0 either.
    return float(value) if 0 < value <= _MAX_VALUE else None


def _checked(raw: Mapping[str, Any], key: str, pattern: re.Pattern[str], what: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise DescriptorError(f"{what}: {shown(value)} is not a {key}")
    return value
