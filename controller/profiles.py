# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""From a profile file to ``model.Profile``: units by indicator, and what must fit together."""

from collections.abc import Callable
from dataclasses import dataclass, field
import math

from controller.configfile import ConfigError, Document, Loc
from controller.configmodels import GainsModel, IndicatorModel, KnobModel, ProfileModel
from controller.control.tuning import DEFAULT_LIMITS, auto_gains
from controller.knoblimits import read_limits
from controller.model import (
    Channel,
    Gains,
    IndicatorName,
    IndicatorSpec,
    Knob,
    KnobLimits,
    Profile,
)
from controller.units import NS_PER_SEC, NS_PER_US, UnitError, parse_duration, parse_ratio

__all__ = ("build_profile",)

# What this version measures: how its sweet point is written, the smallest difference worth
# telling apart (the histogram's buckets are as wide as that near a sweet point of 0.2 ms), and
# how many waits it takes to judge it. A percentile of few waits is chance; the other two are
# shares of time, which no wait at all tells as well.
_MEASURED: dict[IndicatorName, tuple[Callable[[str], float], str, int]] = {
    IndicatorName.RUNQ_P50: (parse_duration, "50us", 20),
    IndicatorName.RUNQ_P95: (parse_duration, "50us", 20),
    IndicatorName.RUNQ_P99: (parse_duration, "50us", 20),
    IndicatorName.RUNQ_DELAY_P99: (parse_duration, "50us", 0),
    IndicatorName.WAIT_RATIO: (parse_ratio, "0.1%", 0),
}


@dataclass(slots=True)
class _Reader:
    """Collects what is wrong with one profile while its fields are read."""

    document: Document
    tick_ns: int
    problems: list[str] = field(default_factory=list)

    def complain(self, loc: Loc, message: str) -> None:
        self.problems.append(self.document.problem(loc, message))

    def indicator(self, name: IndicatorName, model: IndicatorModel) -> IndicatorSpec | None:
        loc: Loc = ("indicators", str(name))
        if name not in _MEASURED:
            have = ", ".join(_MEASURED)
            self.complain(loc, f"this version does not measure it (it measures {have})")
            return None
        if model.channel is not Channel.CPU:
            self.complain((*loc, "channel"), "this version has knobs for channel cpu only")
        parse, smallest, samples = _MEASURED[name]
        sweet_point = self._measure((*loc, "sweet_point"), model.sweet_point, parse)
        resolution = self._measure((*loc, "resolution"), model.resolution or smallest, parse)
        if math.isnan(sweet_point) or math.isnan(resolution):
            return None
        if not 0 < resolution < sweet_point:
            self.complain((*loc, "resolution"), "must be above 0 and below the sweet point")
        if model.filter > 10 * model.window:
            self.complain((*loc, "filter"), "must be at most ten times the window")
        return IndicatorSpec(
            name=name,
            sweet_point=sweet_point,
            tolerance=model.tolerance,
            resolution=resolution,
            dead_zone=model.dead_zone,
            window_ns=model.window,
            filter_ns=model.filter,
            min_samples=samples if model.min_samples is None else model.min_samples,
            channel=model.channel,
            gains=_gains(model, self.tick_ns),
        )

    def limits(self, knob: Knob, model: KnobModel) -> KnobLimits:
        def complain(loc: tuple[str, ...], message: str) -> None:
            self.complain(("knobs", str(knob), *loc), message)

        return read_limits(knob, model, complain)

    def _measure(self, loc: Loc, text: str, parse: Callable[[str], float]) -> float:
        try:
            return float(parse(text))
        except UnitError as error:
            self.complain(loc, str(error))
            return math.nan


def build_profile(document: Document, model: ProfileModel, tick_ns: int) -> Profile:
    """Return the profile that *model*, read from *document*, stands for.

    Gains that are ``auto`` are computed for a control period of *tick_ns*.

    :raises ConfigError: fields that do not fit together, or that this version cannot act on.
    """
    reader = _Reader(document, tick_ns)
    specs = [reader.indicator(name, one) for name, one in model.indicators.items()]
    limits = {knob: reader.limits(knob, one) for knob, one in model.knobs.items()}
    channels = tuple(channel for channel in Channel if channel in model.channels)
    if model.evict.enabled:
        reader.complain(("evict", "enabled"), "this version cannot evict: leave it false")
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


def _gains(model: IndicatorModel, tick_ns: int) -> Gains:
    gains = model.gains
    if isinstance(gains, GainsModel):
        return Gains(kp=gains.kp, ti_s=gains.ti / NS_PER_SEC, td_s=gains.td / NS_PER_SEC)
    return auto_gains(model.window, tick_ns, model.filter)
