# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Conversion of a profile file to ``settings.Profile``, with the checks that need two fields.

The unit of a sweet point depends on its indicator (``controller.config.indicator``), the unit of
a floor on its knob.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from controller.config.indicator import read_indicator
from controller.config.models import IndicatorModel, KnobModel, ProfileModel
from controller.config.yaml_document import ConfigError, Document, Loc
from controller.core.model import Channel, IndicatorName, Knob
from controller.core.settings import IndicatorSpec, KnobLimits, Profile
from controller.core.tuning import DEFAULT_LIMITS
from controller.core.units import NS_PER_US, UnitError, parse_bytes, parse_cpus, parse_ratio

__all__ = (
    "build_profile",
    "read_limits",
)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UnitError(f"{text!r} is not a number") from None


class _Floor(NamedTuple):
    """Unit and permitted range of a knob's floor."""

    parse: Callable[[str], float]
    least: str
    most: str


_FLOORS = {
    # The kernel's smallest quota is 1 ms, the agent's longest period 100 ms: 10 mcpu.
    Knob.CPU_QUOTA: _Floor(parse_cpus, "10mcpu", "1024cpu"),
    Knob.LLC_WAYS: _Floor(_number, "1", "64"),
    Knob.MBA: _Floor(parse_ratio, "1%", "100%"),
    Knob.TC_CEILING: _Floor(parse_ratio, "0.1%", "100%"),
    Knob.MEMORY_HIGH: _Floor(parse_bytes, "1MiB", "1TiB"),
    Knob.IO_WEIGHT: _Floor(_number, "1", "100"),
    Knob.IO_MAX: _Floor(parse_ratio, "0.1%", "100%"),
}


def read_limits(
    knob: Knob, model: KnobModel, report: Callable[[tuple[str, ...], str], None]
) -> KnobLimits:
    """Return the limits that *model* describes; fields that it omits have the knob's defaults.

    Problems go to *report*, with the place below the knob.
    """
    if knob not in _FLOORS:
        hint = ": use the field sched_idle" if knob is Knob.SCHED_IDLE else ""
        report((), f"not a graded knob{hint}")
        return KnobLimits(floor=0.0, squeeze_per_s=1.0, release_step=1.0, release_spacing_ns=0)
    limits = DEFAULT_LIMITS[knob]
    return replace(
        limits,
        floor=limits.floor if model.floor is None else _floor(knob, model.floor, report),
        squeeze_per_s=_default(model.squeeze, limits.squeeze_per_s),
        release_step=_default(model.release_step, limits.release_step),
        release_spacing_ns=round(_default(model.release_spacing, limits.release_spacing_ns)),
    )


def _floor(knob: Knob, text: str, report: Callable[[tuple[str, ...], str], None]) -> float:
    parse, least, most = _FLOORS[knob]
    try:
        floor = parse(text)
    except UnitError as error:
        report(("floor",), str(error))
        return 0.0
    if not parse(least) <= floor <= parse(most):
        report(("floor",), f"must be between {least} and {most}")
    return floor


def _default(value: float | None, default: float) -> float:
    return default if value is None else value


@dataclass(slots=True)
class _Reader:
    """Reads the fields of one profile and collects the problems."""

    document: Document
    tick_ns: int
    problems: list[str] = field(default_factory=list)

    def report(self, loc: Loc, message: str) -> None:
        self.problems.append(self.document.problem(loc, message))

    def indicator(self, name: IndicatorName, model: IndicatorModel) -> IndicatorSpec | None:
        def report(loc: tuple[str, ...], message: str) -> None:
            self.report(("indicators", str(name), *loc), message)

        return read_indicator(name, model, self.tick_ns, report)

    def limits(self, knob: Knob, model: KnobModel) -> KnobLimits:
        def report(loc: tuple[str, ...], message: str) -> None:
            self.report(("knobs", str(knob), *loc), message)

        return read_limits(knob, model, report)


def build_profile(
    document: Document, model: ProfileModel, tick_ns: int, *, evicts: bool
) -> Profile:
    """Return the profile that *model*, read from *document*, describes.

    Gains that are ``auto`` are computed for a control period of *tick_ns*. *evicts*: an eviction
    can be executed or reported with this configuration.

    :raises ConfigError: fields contradict each other, or ask for an eviction without *evicts*.
    """
    reader = _Reader(document, tick_ns)
    specs = [reader.indicator(name, one) for name, one in model.indicators.items()]
    limits = {knob: reader.limits(knob, one) for knob, one in model.knobs.items()}
    channels = tuple(channel for channel in Channel if channel in model.channels)
    if model.evict.enabled and not evicts:
        text = "no way to evict: set eviction.standalone or kubernetes in the configuration"
        reader.report(("evict", "enabled"), text)
    if reader.problems:
        raise ConfigError(reader.problems)
    return Profile(
        name=model.name,
        indicators=tuple(spec for spec in specs if spec is not None),
        sched_idle=model.sched_idle,
        be_share_min=model.be_share_min,
        idle_oncpu_ratio=model.idle_below,
        limits={**DEFAULT_LIMITS, **limits},
        channels=channels,
        cpu_burst_us=model.cpu_burst // NS_PER_US,
        resctrl_class=model.resctrl_class or "",
        io_class=model.io_class or "",
        evict_enabled=model.evict.enabled,
        evict_after_ns=model.evict.after,
    )
