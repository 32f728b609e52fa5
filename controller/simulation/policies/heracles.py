# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Heracles (Lo et al., ISCA 2015): a latency loop above a loop for cores, cache and bandwidth.

Written from the paper's algorithms 1 and 2. The model of the services' bandwidth, which the paper
makes offline, is replaced by the measured bandwidth of the services, which is better. Power and
network are not simulated. Where the paper's else-chain allows growth below a load of 0.80, growth
is still gated by the slack in the core loop.
"""

from dataclasses import dataclass
import math

from controller.simulation.machine import Machine
from controller.simulation.plant import Plant
from controller.simulation.policies.fixed import set_idle
from controller.simulation.policies.policy import Meter, Reading

__all__ = ("CoreLoop", "Heracles", "HeraclesSettings", "TopLoop")

_LOAD_STOP, _LOAD_ALLOW = 0.85, 0.80
_SLACK_HOLD, _SLACK_SHRINK = 0.10, 0.05
_LEFT_CORES = 2
_BANDWIDTH_LIMIT = 0.9
_CORE_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeraclesSettings:
    """``top_s`` is the interval of the latency loop, ``cooldown_s`` the pause after a violation."""

    top_s: float = 15.0
    cooldown_s: float = 300.0


class TopLoop:
    """Decides from slack and load whether jobs may run, grow, or must shrink.

    ``enabled``: jobs may run. ``may_grow``: they may take more.
    """

    def __init__(self, cooldown_s: float) -> None:
        self._cooldown_s = cooldown_s
        self._until_s = -math.inf
        self.enabled = True
        self.may_grow = True

    def update(self, slack: float, load: float, now_s: float) -> bool:
        """Take slack (part of the objective) and load; return whether to shrink to two cores."""
        if now_s < self._until_s:
            return False
        self.may_grow = True
        if slack < 0:
            self.enabled = False
            self._until_s = now_s + self._cooldown_s
        elif load > _LOAD_STOP:
            self.enabled = False
        elif load < _LOAD_ALLOW:
            self.enabled = True
        elif slack < _SLACK_HOLD:
            self.may_grow = False
            return slack < _SLACK_SHRINK
        return False


class CoreLoop:
    """Grows cores and cache ways of the jobs one at a time, below the bandwidth limit.

    ``cores`` counts CPUs; ``ways`` are cache ways.
    """

    def __init__(self, machine: Machine) -> None:
        self._limit = _BANDWIDTH_LIMIT * machine.bandwidth
        self._most = machine.cpus - 1
        self._most_ways = machine.ways - 1
        self.cores = 1
        self.ways = max(1, round(0.1 * machine.ways))
        self._grow_ways = True
        self._last_bandwidth = 0.0
        self._last_work = 0.0
        self._tried = False

    def restart(self) -> None:
        """Start again with one CPU and a tenth of the cache, as when jobs are enabled."""
        self.cores = 1
        self.ways = max(1, round(0.1 * (self._most_ways + 1)))
        self._grow_ways, self._tried = True, False

    def update(self, total: float, jobs: float, work: float, may_grow: bool, slack: float) -> None:
        """Take the bandwidths in bytes/s, all and the jobs', and the jobs' *work* rate."""
        per_core = jobs / max(self.cores, 1)
        if total > self._limit:
            overage = math.ceil((total - self._limit) / max(per_core, 1.0))
            self.cores = max(1, self.cores - overage)
            self._tried = False
        elif may_grow and self._grow_ways:
            self._grow_cache(total, per_core, work)
        elif may_grow:
            self._grow_cores(total, per_core, slack)
        self._last_bandwidth, self._last_work = total, work

    def _grow_cache(self, total: float, per_core: float, work: float) -> None:
        if self._tried:
            self._tried = False
            if total >= self._last_bandwidth:  # the step did not save traffic: undone
                self.ways = max(1, self.ways - 1)
                self._grow_ways = False
                return
            if work <= self._last_work:
                self._grow_ways = False
                return
        trend = total - self._last_bandwidth if self._last_bandwidth else 0.0
        if total + trend > self._limit or self.ways >= self._most_ways:
            self._grow_ways = False
            return
        self.ways += 1
        self._tried = True

    def _grow_cores(self, total: float, per_core: float, slack: float) -> None:
        if total + per_core > self._limit:
            self._grow_ways = True
        elif slack > _SLACK_HOLD and self.cores < self._most:
            self.cores += 1


class Heracles:
    """Both loops on a plant. The slack is the worst of the services' over the top interval."""

    interval_s = 1.0

    def __init__(self, plant: Plant, settings: HeraclesSettings | None = None) -> None:
        self._plant = plant
        self._settings = settings or HeraclesSettings()
        self._top = TopLoop(self._settings.cooldown_s)
        self._core = CoreLoop(plant.machine)
        self._meter = Meter(plant)
        self._core_meter = Meter(plant)
        self._slack = 1.0

    def step(self) -> None:
        """Take one second; the loops run at their own intervals."""
        now_s = self._plant.time_s
        if now_s == 0:
            set_idle(self._plant)
        elif _is_due(now_s, self._settings.top_s) and (reading := self._meter.read()):
            self._step_top(reading, now_s)
        if now_s > 0 and _is_due(now_s, _CORE_INTERVAL_S) and (reading := self._core_meter.read()):
            count = len(self._plant.scenario.services)
            total, jobs = float(reading.bandwidth.sum()), float(reading.bandwidth[count:].sum())
            if self._top.enabled:
                self._core.update(total, jobs, reading.job_work, self._top.may_grow, self._slack)
        knobs = self._plant.knobs
        knobs.cpuset = float(self._core.cores) if self._top.enabled else 1e-3
        knobs.ways = self._core.ways

    def _step_top(self, reading: Reading, now_s: float) -> None:
        plant, enabled = self._plant, self._top.enabled
        services = plant.scenario.services
        slacks = [
            1.0 - (plant.p99_s(index, self._settings.top_s) or 0.0) / each.slo_s
            for index, each in enumerate(services)
        ]
        loads = [rate / each.rate for rate, each in zip(reading.requests, services, strict=True)]
        self._slack = min(slacks)
        if self._top.update(self._slack, max(loads), now_s):
            self._core.cores = min(self._core.cores, _LEFT_CORES)
        if self._top.enabled and not enabled:
            self._core.restart()


def _is_due(now_s: float, interval_s: float) -> bool:
    return round(now_s) % round(interval_s) == 0
