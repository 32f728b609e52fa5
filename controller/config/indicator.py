# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The ``indicators`` of a profile: unit, defaults and checks of each indicator."""

from collections.abc import Callable
import math
from typing import NamedTuple

from controller.config.models import GainsModel, IndicatorModel, LearnModel, ObjectiveModel
from controller.core.learning.objective import Margin
from controller.core.model import Channel, IndicatorName
from controller.core.settings import Gains, IndicatorSpec, LoadBin
from controller.core.tuning import auto_gains
from controller.core.units import (
    NS_PER_MS,
    NS_PER_SEC,
    UnitError,
    format_bandwidth,
    format_duration,
    parse_bandwidth,
    parse_cpus,
    parse_duration,
    parse_number,
    parse_rate,
    parse_ratio,
)

__all__ = ("format_value", "read_indicator")

# Reports a problem: the place below the indicator, and the message.
Report = Callable[[tuple[str, ...], str], None]


class _Kind(NamedTuple):
    """Unit and defaults of an indicator.

    ``parse`` converts the text of a sweet point. ``resolution`` is the smallest difference that
    is significant; empty: a hundredth of the sweet point. ``min_samples`` is the number of events
    that an evaluation needs; ``None``: the indicator is not computed from events. ``period_ns`` is
    the time between two readings, 0 if there is one in every tick. ``load`` converts the load of a
    bin; ``None``: a profile has one sweet point for all loads. ``allow`` is how far above
    what is normal a learned sweet point lies; ``None``: it cannot be learned. A learned one is not
    below ``least``, unless the number of the profile is.
    """

    parse: Callable[[str], float]
    resolution: str
    channel: Channel = Channel.CPU
    min_samples: int | None = None
    tolerance: float = 2.0
    window_ns: int = NS_PER_SEC
    period_ns: int = 0
    load: Callable[[str], float] | None = None
    allow: float | None = None
    least: float = 0.0


def _figure(text: str) -> float:
    """Return the sweet point of a service's own figure: a time in ns, or a number."""
    return parse_duration(text) if _has_unit(text) else parse_number(text)


def _has_unit(text: str) -> bool:
    return any(letter.isalpha() for letter in text)


def _waits(min_samples: int) -> _Kind:
    # 50 us is the width of the histogram's buckets near a sweet point of 0.2 ms.
    # least: behind a task that does not yield at once the wait is up to a slice, 2.8 to 3 ms.
    # Squeezes for less than 1 ms brought nothing: memcached beside stress-ng stream in the idle
    # class had a p99 of 0.3 to 0.8 ms with and without (docs/BENCHMARKS.md).
    return _Kind(parse_duration, "50us", min_samples=min_samples, allow=1.0, least=NS_PER_MS)


def _counter(tolerance: float, allow: float) -> _Kind:
    # The counters of tasks that stay on a CPU are read once a second.
    return _Kind(
        parse_number,
        "0.01",
        Channel.CACHE,
        1000,
        tolerance=tolerance,
        period_ns=NS_PER_SEC,
        load=parse_cpus,
        allow=allow,
    )


def _pressure(channel: Channel) -> _Kind:
    # Pressure is read once a second; a shorter window would hold less than two readings.
    return _Kind(
        parse_ratio,
        "0.1%",
        channel,
        window_ns=2 * NS_PER_SEC,
        period_ns=NS_PER_SEC,
        allow=1.0,
    )


# min_samples: a percentile of few waits is noise. runq_delay_p99 and wait_ratio are shares of time,
# which are also defined without a single wait. CPI and misses are per instruction, counted in
# thousands. They vary little, so their tolerance is small: 10 % more CPI is as bad as twice the
# latency. Packets are read once a second where they are counted by network namespace. If a page
# takes 0.1 ms to be read again (assumed: a fast disk), then 200/s, ten times the resolution of
# refaults, take 2 % of a task's time.
_KINDS = {
    IndicatorName.RUNQ_P50: _waits(20),
    IndicatorName.RUNQ_P95: _waits(20),
    IndicatorName.RUNQ_P99: _waits(20),
    IndicatorName.RUNQ_DELAY_P99: _waits(0),
    IndicatorName.WAIT_RATIO: _Kind(parse_ratio, "0.1%", min_samples=0, allow=1.0),
    IndicatorName.CPI: _counter(1.1, 0.25),
    IndicatorName.LLC_MPKI: _counter(1.5, 1.0),
    IndicatorName.CPU_PER_PACKET: _Kind(
        parse_duration,
        "10ns",
        Channel.CACHE,
        100,
        tolerance=1.15,
        window_ns=2 * NS_PER_SEC,
        period_ns=NS_PER_SEC,
        load=parse_rate,
        allow=0.25,
    ),
    IndicatorName.NET_RATE: _Kind(parse_bandwidth, "100kbit", Channel.NETWORK),
    IndicatorName.NET_BACKLOG: _Kind(parse_duration, "10us", Channel.NETWORK, 0),
    IndicatorName.NET_DROPS: _Kind(parse_ratio, "0.001%", Channel.NETWORK, 100),
    IndicatorName.PSI_CPU: _pressure(Channel.CPU),
    IndicatorName.PSI_MEMORY: _pressure(Channel.MEMORY),
    IndicatorName.REFAULTS: _pressure(Channel.MEMORY)._replace(parse=parse_rate, resolution="20/s"),
    IndicatorName.PSI_IO: _pressure(Channel.IO),
    IndicatorName.DISK_WAIT: _Kind(parse_duration, "20us", Channel.IO, 10, allow=1.0),
    IndicatorName.SERVICE: _Kind(_figure, "", window_ns=5 * NS_PER_SEC),
}
_BY_LOAD = [name for name, kind in _KINDS.items() if kind.load is not None]


def read_indicator(
    name: IndicatorName, model: IndicatorModel, tick_ns: int, report: Report
) -> IndicatorSpec | None:
    """Return the specification that *model* describes, ``None`` without valid sweet point.

    Gains that are ``auto`` are computed for ticks of *tick_ns*. Problems go to *report*.
    """
    kind = _KINDS[name]
    window_ns = kind.window_ns if model.window is None else model.window
    text, learn = _sweet_point(model)
    sweet_point = None
    if isinstance(model.sweet_point, ObjectiveModel) and name is not IndicatorName.SERVICE:
        report(("sweet_point",), f"an objective is for {IndicatorName.SERVICE} only")
        return None
    if text is not None:
        sweet_point = _number(_place(model), text, kind.parse, report)
    if learn and kind.allow is None:
        can = ", ".join(each for each, other in _KINDS.items() if other.allow is not None)
        report(("sweet_point",), f"{name} needs a value; {can} can be learned")
        return None
    objective = None
    if isinstance(model.sweet_point, ObjectiveModel):
        objective, sweet_point = sweet_point, (sweet_point or 0.0) * Margin().ratio
    if learn and model.bins:
        report(("bins",), "cannot be set where the sweet point is learned")
    smallest = model.resolution or kind.resolution
    if smallest:
        resolution = _number(("resolution",), smallest, kind.parse, report)
    else:
        resolution = (sweet_point or 0.0) / 100
    bins = _bins(name, model, report)
    if math.isnan(sweet_point or 0.0) or math.isnan(resolution):
        return None
    points = (sweet_point, *(each.sweet_point for each in bins))
    if not 0 < resolution < min((each for each in points if each is not None), default=math.inf):
        report(("resolution",), "must be above 0 and below the sweet point")
    if model.filter > 10 * window_ns:
        report(("filter",), "must be at most ten times the window")
    if window_ns < kind.period_ns:
        report(("window",), "must be at least 1s: the indicator is read once a second")
    if kind.min_samples is None and model.min_samples is not None:
        report(("min_samples",), f"{name} is not computed from counted events")
    if name is IndicatorName.SERVICE and model.channel is not None:
        report(("channel",), "cannot be set: the channel whose own indicators are worst is used")
    min_samples = kind.min_samples if model.min_samples is None else model.min_samples
    return IndicatorSpec(
        name=name,
        sweet_point=sweet_point,
        tolerance=model.tolerance or kind.tolerance,
        resolution=resolution,
        dead_zone=model.dead_zone,
        window_ns=window_ns,
        filter_ns=model.filter,
        min_samples=min_samples or 0,
        channel=model.channel or kind.channel,
        gains=_gains(model, window_ns, max(tick_ns, kind.period_ns)),
        bins=bins,
        is_time=kind.parse is parse_duration or (kind.parse is _figure and _has_unit(text or "")),
        learn=learn,
        allow=_allowed(model, kind) if learn else 0.0,
        least=min(kind.least, sweet_point or 0.0) if learn else 0.0,
        objective=objective,
    )


def format_value(spec: IndicatorSpec, value: float) -> str:
    """Return *value*, of the indicator of *spec*, with its unit as in a profile."""
    parse = _KINDS[spec.name].parse
    if spec.is_time:
        return format_duration(value)
    if parse is parse_ratio:
        return f"{100 * value:.3g}%"
    if parse is parse_rate:
        return f"{value:.4g}/s"
    return format_bandwidth(value) if parse is parse_bandwidth else f"{value:.4g}"


def _sweet_point(model: IndicatorModel) -> tuple[str | None, bool]:
    """Return the text of the sweet point, if there is one, and whether it is to be learned."""
    given = model.sweet_point
    if isinstance(given, LearnModel):
        return given.until_sure, True
    if isinstance(given, ObjectiveModel):
        return given.objective, False
    return (None, True) if given == "learn" else (given, False)


def _place(model: IndicatorModel) -> tuple[str, ...]:
    """Return the place of the value of the sweet point, below the indicator."""
    given = model.sweet_point
    if isinstance(given, LearnModel):
        return "sweet_point", "until_sure"
    return ("sweet_point", "objective") if isinstance(given, ObjectiveModel) else ("sweet_point",)


def has_bins(name: IndicatorName) -> bool:
    """Return whether a profile may have sweet points of the indicator by load."""
    return _KINDS[name].load is not None


def learned_specs(tick_ns: int) -> tuple[IndicatorSpec, ...]:
    """Return a specification of each indicator that can be learned, for ticks of *tick_ns*."""
    model = IndicatorModel(sweet_point="learn")
    specs = (
        read_indicator(name, model, tick_ns, lambda loc, text: None)
        for name, kind in _KINDS.items()
        if kind.allow is not None
    )
    return tuple(spec for spec in specs if spec is not None)


def _allowed(model: IndicatorModel, kind: _Kind) -> float:
    given = model.sweet_point.allow if isinstance(model.sweet_point, LearnModel) else None
    return kind.allow or 0.0 if given is None else given


def _bins(name: IndicatorName, model: IndicatorModel, report: Report) -> tuple[LoadBin, ...]:
    kind = _KINDS[name]
    if not model.bins:
        return ()
    if kind.load is None:
        report(("bins",), f"{name} has one sweet point for all loads; see {', '.join(_BY_LOAD)}")
        return ()
    bins = [
        LoadBin(
            _number(("bins",), each.above, kind.load, report),
            _number(("bins",), each.sweet_point, kind.parse, report),
        )
        for each in model.bins
    ]
    found = [each for each in bins if not any(map(math.isnan, each))]
    above = [each.above for each in found]
    if above != sorted(set(above)) or min(above, default=1.0) <= 0:
        report(("bins",), "must be above 0 and ordered by 'above', lowest first")
    return tuple(found)


def _number(
    loc: tuple[str, ...], text: str, parse: Callable[[str], float], report: Report
) -> float:
    try:
        return float(parse(text))
    except UnitError as error:
        report(loc, str(error))
        return math.nan


def _gains(model: IndicatorModel, window_ns: int, period_ns: int) -> Gains:
    gains = model.gains
    if isinstance(gains, GainsModel):
        return Gains(kp=gains.kp, ti_s=gains.ti / NS_PER_SEC, td_s=gains.td / NS_PER_SEC)
    return auto_gains(window_ns, period_ns, model.filter)
