# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The ``indicators`` of a profile: each with its unit, and what suits it when left out."""

from collections.abc import Callable
import math
from typing import NamedTuple

from controller.config.models import GainsModel, IndicatorModel
from controller.core.control.tuning import auto_gains
from controller.core.model import Channel, IndicatorName
from controller.core.settings import Gains, IndicatorSpec, LoadBin
from controller.core.units import (
    NS_PER_SEC,
    UnitError,
    parse_bandwidth,
    parse_duration,
    parse_number,
    parse_ratio,
)

__all__ = ("read_indicator",)

Complain = Callable[[tuple[str, ...], str], None]


class _Kind(NamedTuple):
    """How an indicator's sweet point is written, and what is taken for what is left out.

    ``resolution`` is the smallest difference worth telling apart, ``min_samples`` how many
    events it takes to judge it (``None``: it does not come from events), ``period_ns`` how often
    there is something new if that is not in every tick.
    """

    parse: Callable[[str], float]
    resolution: str
    channel: Channel = Channel.CPU
    min_samples: int | None = None
    tolerance: float = 2.0
    window_ns: int = NS_PER_SEC
    period_ns: int = 0


def _figure(text: str) -> float:
    """Return a service's own figure: a time in ns, or any number."""
    return parse_duration(text) if _has_unit(text) else parse_number(text)


def _has_unit(text: str) -> bool:
    return any(letter.isalpha() for letter in text)


def _waits(min_samples: int) -> _Kind:
    # The histogram's buckets are as wide as that near a sweet point of 0.2 ms.
    return _Kind(parse_duration, "50us", min_samples=min_samples)


def _counter(tolerance: float) -> _Kind:
    # Of who stays on a CPU, the counters are read once a second.
    return _Kind(
        parse_number, "0.01", Channel.CACHE, 1000, tolerance=tolerance, period_ns=NS_PER_SEC
    )


def _pressure(channel: Channel) -> _Kind:
    # Read once a second; less than two readings apart it is the pressure of one moment.
    return _Kind(parse_ratio, "0.1%", channel, window_ns=2 * NS_PER_SEC, period_ns=NS_PER_SEC)


# A percentile of few waits is chance; the delay of an arrival and the wait ratio are shares of
# time, which no wait at all tells as well. CPI and misses come from instructions, counted in
# thousands, and hardly move: a tenth more CPI is as bad as twice the latency.
_KINDS = {
    IndicatorName.RUNQ_P50: _waits(20),
    IndicatorName.RUNQ_P95: _waits(20),
    IndicatorName.RUNQ_P99: _waits(20),
    IndicatorName.RUNQ_DELAY_P99: _waits(0),
    IndicatorName.WAIT_RATIO: _Kind(parse_ratio, "0.1%", min_samples=0),
    IndicatorName.CPI: _counter(1.1),
    IndicatorName.LLC_MPKI: _counter(1.5),
    IndicatorName.NET_RATE: _Kind(parse_bandwidth, "100kbit", Channel.NETWORK),
    IndicatorName.NET_BACKLOG: _Kind(parse_duration, "10us", Channel.NETWORK, 0),
    IndicatorName.NET_DROPS: _Kind(parse_ratio, "0.001%", Channel.NETWORK, 100),
    IndicatorName.PSI_CPU: _pressure(Channel.CPU),
    IndicatorName.PSI_MEMORY: _pressure(Channel.MEMORY),
    IndicatorName.PSI_IO: _pressure(Channel.IO),
    IndicatorName.SERVICE: _Kind(_figure, "", window_ns=5 * NS_PER_SEC),
}
_BY_LOAD = (IndicatorName.CPI, IndicatorName.LLC_MPKI)


def read_indicator(
    name: IndicatorName, model: IndicatorModel, tick_ns: int, complain: Complain
) -> IndicatorSpec | None:
    """Return what *model* stands for; gains that are ``auto`` are for ticks of *tick_ns*.

    *complain* is told what is wrong, with the place below the indicator.
    """
    kind = _KINDS[name]
    window_ns = kind.window_ns if model.window is None else model.window
    sweet_point = _measure(("sweet_point",), model.sweet_point, kind, complain)
    smallest = model.resolution or kind.resolution
    if smallest:
        resolution = _measure(("resolution",), smallest, kind, complain)
    else:
        resolution = sweet_point / 100
    bins = _bins(name, model, complain)
    if math.isnan(sweet_point) or math.isnan(resolution):
        return None
    if not 0 < resolution < min(sweet_point, *(each.sweet_point for each in bins), math.inf):
        complain(("resolution",), "must be above 0 and below the sweet point")
    if model.filter > 10 * window_ns:
        complain(("filter",), "must be at most ten times the window")
    if window_ns < kind.period_ns:
        complain(("window",), "must be at least 1s: it is read once a second")
    if kind.min_samples is None and model.min_samples is not None:
        complain(("min_samples",), f"{name} does not come from events that could be counted")
    if name is IndicatorName.SERVICE and model.channel is not None:
        complain(("channel",), "the channel whose own indicators are worst is moved for it")
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
        is_time=_is_time(kind, model.sweet_point),
    )


def _is_time(kind: _Kind, sweet_point: str) -> bool:
    return kind.parse is parse_duration or (kind.parse is _figure and _has_unit(sweet_point))


def _bins(name: IndicatorName, model: IndicatorModel, complain: Complain) -> tuple[LoadBin, ...]:
    if model.bins and name not in _BY_LOAD:
        complain(("bins",), f"{name} has one sweet point for every load")
    above = [each.above for each in model.bins]
    if above != sorted(set(above)):
        complain(("bins",), "must be ordered by 'above', lowest first")
    found = (
        LoadBin(each.above, _measure(("bins",), each.sweet_point, _KINDS[name], complain))
        for each in model.bins
    )
    return tuple(each for each in found if not math.isnan(each.sweet_point))


def _measure(loc: tuple[str, ...], text: str, kind: _Kind, complain: Complain) -> float:
    try:
        return float(kind.parse(text))
    except UnitError as error:
        complain(loc, str(error))
        return math.nan


def _gains(model: IndicatorModel, window_ns: int, period_ns: int) -> Gains:
    gains = model.gains
    if isinstance(gains, GainsModel):
        return Gains(kp=gains.kp, ti_s=gains.ti / NS_PER_SEC, td_s=gains.td / NS_PER_SEC)
    return auto_gains(window_ns, period_ns, model.filter)
