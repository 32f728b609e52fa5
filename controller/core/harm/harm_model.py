# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The harm that each best-effort workload does to one service, estimated from its slowdown.

A Kalman filter over ``slowdown = base + gain * load + sum of harm * CPUs used + noise``. The
coefficients walk at random, so old observations lose weight; differences between workloads show
where their use changes at different times.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import nlargest
import math

from controller.core.limiters import smoothing
from controller.core.model import CgroupId

__all__ = ("CERTAIN", "HarmModel")

# Workloads with a coefficient of their own; all others share one. The cost of an update is
# quadratic in this number.
_MOST = 8
# Standard deviations of what is not known yet: of the harm of one CPU (a CPU of a streamer or of
# vector code is 0.02 to 0.2), of the base after a change, of the effect of the load.
_HARM_SD = 0.1
_BASE_SD = 0.5
_LOAD_SD = 0.3
# How far they walk: the base per square root of a second, the harm from sure to unknown in
# an hour.
_BASE_WALK = 0.02
_FORGET_S = 3600.0
_LEAST_NOISE = 0.005**2
# What is more than so many standard deviations away is certain. Two such slowdowns in a row are a
# change of the workloads.
CERTAIN = 3.0
# A workload is harmless up to this part of the contrast of the worst one.
_HARMLESS = 0.25
_COLUMNS = 2  # base and load, before the workloads


@dataclass(slots=True)
class HarmModel:
    """The coefficients of one service, in slowdown (logarithm of time) per CPU used."""

    # The CPUs that each workload used at most in the last minute.
    reach: dict[CgroupId, float] = field(default_factory=dict)
    _keys: list[CgroupId] = field(default_factory=list)
    # Base, load, the group of all workloads without a coefficient of their own, the workloads.
    _mean: list[float] = field(default_factory=lambda: [0.0] * (_COLUMNS + 1))
    _cov: list[list[float]] = field(
        default_factory=lambda: [
            [_BASE_SD**2, 0.0, 0.0],
            [0.0, _LOAD_SD**2, 0.0],
            [0.0, 0.0, _HARM_SD**2],
        ]
    )
    _noise: float = 0.03**2
    _load: float | None = None
    _surprises: int = 0
    _ticks: int = 0
    _contrasts: Mapping[CgroupId, tuple[float, float]] | None = None

    def update(
        self, slowdown: float, load: float, use: Mapping[CgroupId, float], dt_s: float
    ) -> None:
        """Take one tick: the logarithms of *slowdown* and *load*, and the CPUs used."""
        self._contrasts = None
        if self._load is None:
            self._load, self._mean[0] = load, slowdown
        self._load += smoothing(dt_s, 30.0) * (load - self._load)
        keep = math.exp(-dt_s / 60.0)
        self.reach = {
            each: max(cpus, keep * self.reach.get(each, 0.0)) for each, cpus in use.items()
        }
        self._select()
        self._walk(dt_s)
        self._ticks += 1
        own = [use[each] for each in self._keys]
        row = [1.0, load - self._load, max(0.0, sum(use.values()) - sum(own)), *own]
        self._observe(slowdown, row)

    def forget_certainty(self) -> None:
        """Forget how sure the coefficients are: the workloads or the service changed."""
        self._surprises = 0
        self._cov[0][0] += _BASE_SD**2
        for index in range(_COLUMNS, len(self._mean)):
            self._cov[index][index] += _HARM_SD**2
        self._contrasts = None

    def deeds(self, deviations: float = 1.0) -> dict[CgroupId, float]:
        """Return how much more each workload slows the service down than the others would.

        At its usual use, and as far as it is likely, or surely within so many standard
        *deviations*. Workloads without a coefficient are left out.
        """
        return {
            cgroup: max(0.0, mean - deviations * sd) * self.reach[cgroup]
            for cgroup, (mean, sd) in self.contrasts().items()
        }

    def harmless(self) -> frozenset[CgroupId]:
        """Return the workloads that are likely to do little harm per CPU beside the worst one.

        Their contrast is at most a quarter of its contrast. A workload without a coefficient is not
        among them.
        """
        contrasts = self.contrasts()
        worst = max((mean for mean, _ in contrasts.values()), default=0.0)
        return frozenset(
            cgroup for cgroup, (mean, sd) in contrasts.items() if mean + sd <= _HARMLESS * worst
        )

    def all_deeds(self) -> dict[CgroupId, float]:
        """Return how much each workload slows the service down with certainty at its usual use."""
        least = [
            mean - CERTAIN * math.sqrt(max(0.0, line[place]))
            for place, (mean, line) in enumerate(zip(self._mean, self._cov, strict=True))
        ]
        own = dict(zip(self._keys, least[_COLUMNS + 1 :], strict=True))
        shared = least[_COLUMNS]
        if shared <= 0 and max(own.values(), default=0.0) <= 0:
            return {}
        return {
            cgroup: max(0.0, own.get(cgroup, shared)) * reach
            for cgroup, reach in self.reach.items()
        }

    def doubts(self) -> dict[CgroupId, float]:
        """Return the standard deviation of the slowdown that each workload may cause."""
        return {cgroup: sd * self.reach[cgroup] for cgroup, (_, sd) in self.contrasts().items()}

    @property
    def certainty(self) -> float:
        """The largest contrast relative to its standard deviation; 0 without any."""
        return max((mean / sd for mean, sd in self.contrasts().values() if sd > 0), default=0.0)

    def contrasts(self) -> Mapping[CgroupId, tuple[float, float]]:
        """Return how much more a CPU of each workload harms than one of the others, with its sd.

        Where all CPUs are busy, the others take what one workload gives up, and the harm that all
        have in common cannot be told from the base. Of a single workload it is the harm itself.
        """
        if self._contrasts is None:
            self._contrasts = self._compare()
        return self._contrasts

    def _compare(self) -> dict[CgroupId, tuple[float, float]]:
        # A contrast is one coefficient times `one`, less all of them by their use times `part`.
        first = _COLUMNS + 1
        weights = [self.reach[each] for each in self._keys]
        total = sum(weights)
        mean = self._mean[first:]
        sums = [sum(map(float.__mul__, line[first:], weights)) for line in self._cov[first:]]
        all_mean, all_variance = (sum(map(float.__mul__, each, weights)) for each in (mean, sums))
        found = {}
        for place, (cgroup, weight) in enumerate(zip(self._keys, weights, strict=True)):
            rest = total - weight
            one, part = (total / rest, 1.0 / rest) if rest > 0 else (1.0, 0.0)
            own = self._cov[first + place][first + place]
            variance = one**2 * own - 2 * one * part * sums[place] + part**2 * all_variance
            found[cgroup] = one * mean[place] - part * all_mean, math.sqrt(max(0.0, variance))
        return found

    def _select(self) -> None:
        """Give the workloads that use most a coefficient of their own; the others share one."""
        for cgroup in [each for each in self._keys if each not in self.reach]:
            self._remove(cgroup)
        full = len(self._keys) == min(_MOST, len(self.reach))
        if full and (len(self._keys) < _MOST or self._ticks % 5):
            return
        for cgroup in nlargest(_MOST, self.reach, key=self.reach.__getitem__):
            if cgroup in self._keys:
                continue
            if len(self._keys) >= _MOST:
                least = min(self._keys, key=self.reach.__getitem__)
                if self.reach[cgroup] < 2 * self.reach[least]:
                    break
                self._remove(least)
            for line in self._cov:
                line.append(0.0)
            self._cov.append([0.0] * len(self._mean) + [_HARM_SD**2])
            self._mean.append(0.0)
            self._keys.append(cgroup)

    def _remove(self, cgroup: CgroupId) -> None:
        index = _COLUMNS + 1 + self._keys.index(cgroup)
        self._keys.remove(cgroup)
        del self._mean[index], self._cov[index]
        for line in self._cov:
            del line[index]

    def _walk(self, dt_s: float) -> None:
        self._cov[0][0] += _BASE_WALK**2 * dt_s
        for index in range(_COLUMNS, len(self._mean)):
            self._cov[index][index] += _HARM_SD**2 * dt_s / _FORGET_S

    def _observe(self, slowdown: float, row: list[float]) -> None:
        mean, cov = self._mean, self._cov
        error = slowdown - sum(map(float.__mul__, row, mean))
        effect = [sum(map(float.__mul__, line, row)) for line in cov]
        variance = sum(map(float.__mul__, row, effect)) + self._noise
        if error * error > CERTAIN**2 * variance:
            self._surprises += 1
            if self._surprises > 1:
                self.forget_certainty()
            return
        self._surprises = 0
        # Averaged over all ticks at first, later over fifty.
        ticks = min(50, self._ticks + 5)
        self._noise += self._noise * (error * error / variance - 1.0) / ticks
        self._noise = max(_LEAST_NOISE, self._noise)
        for index, each in enumerate(effect):
            weight = each / variance
            mean[index] += weight * error
            line = cov[index]
            for column, other in enumerate(effect):
                line[column] -= weight * other
