# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""From a profile file to ``model.Profile``: units by indicator, and what must fit together.

The ``knobs`` of a profile: how far and how fast, each with a floor in its own unit.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from controller.config.indicator import read_indicator
from controller.config.models import IndicatorModel, KnobModel, ProfileModel
from controller.config.yaml_document import ConfigError, Document, Loc
from controller.core.control.tuning import DEFAULT_LIMITS
from controller.core.model import Channel, IndicatorName, Knob
from controller.core.settings import IndicatorSpec, KnobLimits, Profile
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
    """How a knob's floor is written, and the range that makes sense."""

    parse: Callable[[str], float]
    least: str
    most: str


_FLOORS = {
    # The kernel's smallest quota is 1 ms, our longest period 100 ms: 10 mcpu.
    Knob.CPU_QUOTA: _Floor(parse_cpus, "10mcpu", "1024cpu"),
    Knob.LLC_WAYS: _Floor(_number, "1", "64"),
    Knob.MBA: _Floor(parse_ratio, "1%", "100%"),
    Knob.TC_CEILING: _Floor(parse_ratio, "0.1%", "100%"),
    Knob.MEMORY_HIGH: _Floor(parse_bytes, "1MiB", "1TiB"),
    Knob.IO_WEIGHT: _Floor(_number, "1", "100"),
    Knob.IO_MAX: _Floor(parse_ratio, "0.1%", "100%"),
}


def read_limits(
    knob: Knob, model: KnobModel, complain: Callable[[tuple[str, ...], str], None]
) -> KnobLimits:
    """Return the limits that *model* stands for, what it leaves out by default.

    *complain* is told what is wrong, with the place below the knob.
    """
    if knob not in _FLOORS:
        hint = "; see sched_idle" if knob is Knob.SCHED_IDLE else ""
        complain((), f"not a graded knob{hint}")
        return KnobLimits(floor=0.0, squeeze_per_s=1.0, release_step=1.0, release_spacing_ns=0)
    limits = DEFAULT_LIMITS[knob]
    return replace(
        limits,
        floor=limits.floor if model.floor is None else _floor(knob, model.floor, complain),
        squeeze_per_s=_or(model.squeeze, limits.squeeze_per_s),
        release_step=_or(model.release_step, limits.release_step),
        release_spacing_ns=round(_or(model.release_spacing, limits.release_spacing_ns)),
    )


def _floor(knob: Knob, text: str, complain: Callable[[tuple[str, ...], str], None]) -> float:
    parse, least, most = _FLOORS[knob]
    try:
        floor = parse(text)
    except UnitError as error:
        complain(("floor",), str(error))
        return 0.0
    if not parse(least) <= floor <= parse(most):
        complain(("floor",), f"must be between {least} and {most}")
    return floor


def _or(written: float | None, default: float) -> float:
    return default if written is None else written


@dataclass(slots=True)
class _Reader:
    """Collects what is wrong with one profile while its fields are read."""

    document: Document
    tick_ns: int
    problems: list[str] = field(default_factory=list)

    def complain(self, loc: Loc, message: str) -> None:
        self.problems.append(self.document.problem(loc, message))

    def indicator(self, name: IndicatorName, model: IndicatorModel) -> IndicatorSpec | None:
        def complain(loc: tuple[str, ...], message: str) -> None:
            self.complain(("indicators", str(name), *loc), message)

        return read_indicator(name, model, self.tick_ns, complain)

    def limits(self, knob: Knob, model: KnobModel) -> KnobLimits:
        def complain(loc: tuple[str, ...], message: str) -> None:
            self.complain(("knobs", str(knob), *loc), message)

        return read_limits(knob, model, complain)


def build_profile(
    document: Document, model: ProfileModel, tick_ns: int, *, evicts: bool
) -> Profile:
    """Return the profile that *model*, read from *document*, stands for.

    Gains that are ``auto`` are computed for a control period of *tick_ns*. *evicts*: there is
    somebody here who can carry an eviction out, or report it.

    :raises ConfigError: fields that do not fit together, or that this version cannot act on.
    """
    reader = _Reader(document, tick_ns)
    specs = [reader.indicator(name, one) for name, one in model.indicators.items()]
    limits = {knob: reader.limits(knob, one) for knob, one in model.knobs.items()}
    channels = tuple(channel for channel in Channel if channel in model.channels)
    if model.evict.enabled and not evicts:
        text = "nothing here can evict: set eviction.standalone or kubernetes in the configuration"
        reader.complain(("evict", "enabled"), text)
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
        evict_enabled=model.evict.enabled,
        evict_after_ns=model.evict.after,
    )
