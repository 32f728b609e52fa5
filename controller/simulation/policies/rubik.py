# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""openEuler rubik: dynCache (cache and bandwidth by miss ratio) and CPI throttling (as CPI2).

Written from the behaviour of rubik and the formulas of CPI2 (Zhang et al., EuroSys 2013). CPI
throttling needs an hour of samples as published; its intervals are settings here.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
import math

import numpy as np

from controller.simulation.plant import Plant
from controller.simulation.policies.fixed import set_idle
from controller.simulation.policies.policy import Meter, Reading

__all__ = ("Rubik", "RubikSettings", "next_level", "suspect_score")

_HIGH, _LOW = 0.20, 0.10
_MOST, _LEAST_WAYS, _LEAST_MBA = 50.0, 20.0, 10.0
_FALL, _RISE = 50.0, 5.0
_IDLE_CPUS = 0.25
_OUTLIERS = 3
_SIGMAS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RubikSettings:
    """``sample_s`` is the time between two CPI samples, ``judge_s`` between two judgements.

    ``history`` is the samples needed for a threshold, ``window`` those of a judgement,
    ``outlier_s`` the time in which three outliers are an anomaly. A suspect with ``score`` gets
    ``cap_cpus`` for ``cap_s``. ``cache``: dynCache runs.
    """

    sample_s: float = 60.0
    judge_s: float = 300.0
    history: int = 60
    window: int = 10
    outlier_s: float = 300.0
    score: float = 0.15
    cap_cpus: float = 0.1
    cap_s: float = 300.0
    cache: bool = True


def next_level(level: float, miss_ratios: Sequence[float], least: float) -> float:
    """Return the percentage of cache ways or bandwidth after *level*."""
    if max(miss_ratios, default=0.0) >= _HIGH:
        return max(least, level - _FALL)
    if max(miss_ratios, default=0.0) < _LOW:
        return min(_MOST, level + _RISE)
    return level


def suspect_score(cpi: Sequence[float], use: Sequence[float], threshold: float) -> float:
    """Return the correlation of CPI2, -1 to 1, of a victim's *cpi* with a suspect's CPU *use*."""
    total = sum(use)
    if total <= 0:
        return 0.0
    return sum(
        part / total * (1.0 - threshold / value if value > threshold else value / threshold - 1.0)
        for value, part in zip(cpi, use, strict=True)
        if value > 0
    )


class Rubik:
    """Both mechanisms on a plant."""

    interval_s = 1.0

    def __init__(self, plant: Plant, settings: RubikSettings | None = None) -> None:
        self._plant = plant
        self._settings = settings or RubikSettings()
        self._meter = Meter(plant)
        self._cpi_meter = Meter(plant)
        count = len(plant.scenario.services)
        self._histories: list[list[float]] = [[] for _ in range(count)]
        # (time, CPI of the services, CPU use of the jobs)
        self._samples: deque[tuple[float, list[float], list[float]]] = deque(
            maxlen=self._settings.window
        )
        self._outliers: list[deque[float]] = [deque(maxlen=_OUTLIERS) for _ in range(count)]
        self._capped: dict[int, float] = {}
        self._ways_level = self._mba_level = _MOST

    def step(self) -> None:
        """Take one second."""
        knobs, machine, now_s = self._plant.knobs, self._plant.machine, self._plant.time_s
        reading = self._meter.read()
        if reading is None:
            set_idle(self._plant)
            if self._settings.cache:
                knobs.ways, knobs.mba = self._ways(_MOST), _MOST
            return
        if self._settings.cache and machine.resctrl:
            ratios = reading.miss_ratio.tolist()
            self._ways_level = next_level(self._ways_level, ratios, _LEAST_WAYS)
            self._mba_level = next_level(self._mba_level, ratios, _LEAST_MBA)
            knobs.ways = self._ways(self._ways_level)
            knobs.mba = 10.0 * math.ceil(self._mba_level / 10.0)
        if machine.pmu:
            self._throttle(now_s)

    def _ways(self, percent: float) -> int:
        return max(1, math.ceil(percent / 100.0 * self._plant.machine.ways))

    def _throttle(self, now_s: float) -> None:
        settings, knobs = self._settings, self._plant.knobs
        for job, until_s in list(self._capped.items()):
            if now_s >= until_s:
                knobs.quota[job] = math.inf
                del self._capped[job]
        if now_s % settings.sample_s == 0 and (reading := self._cpi_meter.read()):
            self._sample(reading, now_s)
        if now_s % settings.judge_s == 0:
            for service in range(len(self._histories)):
                self._judge(service, now_s)

    def _sample(self, reading: Reading, now_s: float) -> None:
        count = len(self._histories)
        cpi = reading.cpi.tolist()
        self._samples.append((now_s, cpi, reading.cpus[count:].tolist()))
        for service, value in enumerate(cpi):
            if reading.cpus[service] < _IDLE_CPUS:
                continue
            threshold = self._threshold(service)
            if threshold is not None and value > threshold:
                self._outliers[service].append(now_s)
            else:
                self._histories[service].append(value)

    def _threshold(self, service: int) -> float | None:
        history = self._histories[service]
        if len(history) < self._settings.history:
            return None
        return float(np.mean(history) + _SIGMAS * np.std(history))

    def _judge(self, service: int, now_s: float) -> None:
        """Cap the best suspect, or the job with most CPU, if the service's CPI is an anomaly."""
        settings, threshold = self._settings, self._threshold(service)
        outliers = self._outliers[service]
        if threshold is None or len(outliers) < _OUTLIERS:
            return
        if now_s - outliers[0] > settings.outlier_s:
            return
        cpi = [each[1][service] for each in self._samples]
        uses = np.array([each[2] for each in self._samples]).T
        scores = [suspect_score(cpi, use.tolist(), threshold) for use in uses]
        best = int(np.argmax(scores))
        if scores[best] < settings.score:
            best = int(np.argmax(uses[:, -1]))
        self._plant.knobs.quota[best] = settings.cap_cpus
        self._plant.knobs.period[best] = 0.1
        self._capped[best] = now_s + settings.cap_s
