# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a service's own figure and the sweet point for it, in two files, have the same unit."""

from collections.abc import Iterable, Iterator, Mapping

from controller.config.profile_set import LoadedProfiles
from controller.config.sections.service_models import ServiceLevelModel
from controller.config.workload_rules import WorkloadRule
from controller.config.yaml_document import Document, Loc
from controller.core.model import IndicatorName
from controller.core.settings import IndicatorSpec

__all__ = ("find_unit_conflicts", "steered_services")

_NUMBER = "number"


def steered_services(
    rules: Iterable[WorkloadRule], loaded: LoadedProfiles
) -> Mapping[str, tuple[str, IndicatorSpec]]:
    """Return the services with a sweet point for their own figure, with profile and sweet point."""
    return {
        rule.service: (rule.profile, spec)
        for rule in rules
        for spec in (
            loaded.profiles[rule.profile].indicators if rule.profile in loaded.profiles else ()
        )
        if spec.name is IndicatorName.SERVICE
    }


def find_unit_conflicts(
    document: Document,
    model: ServiceLevelModel | None,
    steered: Mapping[str, tuple[str, IndicatorSpec]],
    loaded: LoadedProfiles,
) -> Iterator[str]:
    """Yield each sweet point that is no time although its figure is one, or the reverse.

    The problem is told at the sweet point, whose file is the profile's, with what to write.
    """
    for key, given_unit, profile, spec in _own_figures(model, steered, loaded):
        is_time = given_unit != _NUMBER
        if spec.is_time is is_time:
            continue
        written = loaded.documents[profile]
        loc, given = _sweet_point(written)
        unit = f"{document.origin}: service_level.{key}.unit is {given_unit!r}"
        if is_time:
            text = f"{given!r} has no unit, but the figure is a time ({unit}): write {given}ms or "
            text += f"{given}s, or set that unit to {_NUMBER}"
        else:
            text = f"{given!r} is a time, but the figure is none ({unit}): write a number, or set "
            text += "that unit to s, ms, us or ns"
        yield written.problem(loc, text)


def _own_figures(
    model: ServiceLevelModel | None,
    steered: Mapping[str, tuple[str, IndicatorSpec]],
    loaded: LoadedProfiles,
) -> Iterator[tuple[str, str, str, IndicatorSpec]]:
    """Yield the key of each source, its unit, and the profile with the sweet point for it."""
    if model is None:
        return
    for service, source in model.services.items():
        if service in steered:
            yield f"services.{service}", source.unit, *steered[service]
    for profile, pods in model.pods.items():
        indicators = loaded.profiles[profile].indicators if profile in loaded.profiles else ()
        for spec in indicators:
            if spec.name is IndicatorName.SERVICE:
                yield f"pods.{profile}", pods.unit, profile, spec


def _sweet_point(document: Document) -> tuple[Loc, str]:
    """Return the place and the text of the sweet point for the service's own figure."""
    loc: Loc = ("indicators", str(IndicatorName.SERVICE), "sweet_point")
    if (*loc, "objective") in document.lines:
        loc = (*loc, "objective")
    value = document.data
    for key in loc:
        value = value.get(key) if isinstance(value, dict) else None
    return loc, str(value)
