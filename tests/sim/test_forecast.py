# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the forecast brings on a node whose services follow the hour of the day and of the week.

A queue of best-effort pods is never empty. A pod of one CPU starts when the offer has room for it
and lives for a random time with a median of an hour. While services and pods want more than the
node has, all pods are squeezed, because a squeeze gives each of them less than it requested.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
import heapq
import math
import random

from controller.config.sections.kubernetes_capacity import ReclaimLimits
from controller.core.units import NS_PER_SEC
from controller.kube.capacity import Expected, Forecast, Reclaimable

STEP_S = 30
DAY_S = 24 * 3600
CPUS = 64.0
EPOCH_NS = 1_791_763_200 * NS_PER_SEC  # a Monday, 00:00 UTC
LIMITS = ReclaimLimits()
# Of services that use 15 % of the node by night and 70 % by day, as published traces have it.
NIGHT, DAY = 0.15, 0.70
NOISE = 0.02


def use(days: int, seed: int, *, weekend: float, surprise: int | None) -> Iterator[float]:
    """Yield the use of services in each step.

    The height of a day varies by 5 %, its begin by ten minutes (standard deviations). Half of the
    noise is over in a step, half lasts for ten minutes. The rise takes an hour.

    :param weekend: the height of Saturday and Sunday; 1: that of other days.
    :param surprise: number of a day that is 1.4 times as high; ``None``: there is none.
    """
    chance = random.Random(seed)
    keep, slow = math.exp(-STEP_S / 600), 0.0
    for day in range(days):
        height = (weekend if day % 7 >= 5 else 1.0) * chance.gauss(1.0, 0.05)
        height *= 1.4 if day == surprise else 1.0
        late = chance.gauss(0.0, 1 / 6)
        for step in range(DAY_S // STEP_S):
            hour = step * STEP_S / 3600 - late
            shape = 1 / (1 + math.exp((8 - hour) * 4)) / (1 + math.exp((hour - 19) * 3))
            slow = keep * slow + chance.gauss(0.0, NOISE) * math.sqrt(1 - keep * keep)
            found = NIGHT + (DAY - NIGHT) * height * shape + slow + chance.gauss(0.0, NOISE)
            yield max(0.0, min(1.0, found))


@dataclass
class Sums:
    """CPU-hours that were offered, pod-hours that were squeezed, hours whose forecast was judged.

    ``broken_days`` has the day of each hour in which use exceeded forecast and reserve.
    """

    offered: float = 0.0
    squeezed: float = 0.0
    judged: int = 0
    broken_days: list[int] = field(default_factory=list)

    def __add__(self, other: "Sums") -> "Sums":
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Sums(*(one + two for one, two in pairs))


def run(uses: Iterable[float], first_day: int, seed: int, forecast: Forecast | None) -> Sums:
    """Return the sums from *first_day* on, of one node that starts without a past."""
    chance = random.Random(seed)
    reclaimable = Reclaimable(LIMITS)
    ends: list[float] = []
    squeezed_to: float | None = None
    expected: Expected | None = None
    sums = Sums()
    for step, ratio in enumerate(uses):
        now_s = step * STEP_S
        now_ns, day = now_s * NS_PER_SEC, now_s // DAY_S
        while ends and ends[0] <= now_s:
            heapq.heappop(ends)
        if forecast is not None:
            before = forecast.judged, forecast.broken
            expected = forecast.expected(EPOCH_NS + now_ns)
            forecast.update(now_ns, EPOCH_NS + now_ns, ratio)
            if day >= first_day:
                sums.judged += forecast.judged - before[0]
                sums.broken_days += [day] * (forecast.broken - before[1])
        offer = reclaimable.update(now_ns, CPUS, CPUS * ratio, len(ends), squeezed_to, expected)
        while len(ends) + 1 <= offer:
            heapq.heappush(ends, now_s + 3600 * chance.lognormvariate(0.0, 1.0))
        left = CPUS * (1 - ratio)
        squeezed_to = left if len(ends) > left else None
        if day >= first_day:
            sums.offered += offer * STEP_S / 3600
            sums.squeezed += 0.0 if squeezed_to is None else len(ends) * STEP_S / 3600
    return sums


@dataclass(frozen=True)
class Found:
    """The sums of three seeds, with the rule of the last ten minutes alone and with a forecast."""

    rule: Sums
    forecast: Sums

    @property
    def squeezed(self) -> float:
        """Squeezed pod-hours as a part of those without a forecast."""
        return self.forecast.squeezed / self.rule.squeezed

    @property
    def offered(self) -> float:
        """Offered CPU-hours, likewise."""
        return self.forecast.offered / self.rule.offered


def compare(weeks: int, first_day: int, *, weekend: float, surprise: int | None = None) -> Found:
    rule = with_forecast = Sums()
    for seed in (1, 2, 3):
        uses = list(use(weeks * 7, seed, weekend=weekend, surprise=surprise))
        rule += run(uses, first_day, seed, None)
        with_forecast += run(uses, first_day, seed, Forecast(LIMITS.reserve_ratio))
    return Found(rule, with_forecast)


def test_equal_days() -> None:
    found = compare(5, 14, weekend=1.0)
    assert found.rule.squeezed > 300  # there is something to save
    assert found.squeezed <= 0.5
    assert found.offered >= 0.9
    assert len(found.forecast.broken_days) <= 0.02 * found.forecast.judged


def test_quiet_weekends_and_a_surprise() -> None:
    """The surprise counts in its week and in the weeks after it, in which it fades."""
    surprise = 16
    found = compare(5, 14, weekend=0.5, surprise=surprise)
    assert found.rule.squeezed > 300
    assert found.squeezed <= 0.5
    assert found.offered >= 0.9
    # No forecast knows of a surprise, so the hours of its height are broken.
    usual = [day for day in found.forecast.broken_days if day != surprise]
    assert 3 * 8 <= len(found.forecast.broken_days) - len(usual) <= 3 * 14
    assert len(usual) <= 0.02 * (found.forecast.judged - 3 * 24)


def test_in_the_first_week_the_forecast_counts_more_from_day_to_day() -> None:
    found = compare(1, 0, weekend=0.5)
    assert found.forecast.judged == 3 * (7 * 24 - 24 - 1)  # the last hour has not ended
    assert 0.3 <= found.squeezed <= 0.8
    assert found.offered >= 0.8
