# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Katalyst's CPU provision: "canonical" (an estimate of need), and "rama" (a controller).

Written from the behaviour of katalyst-core 0.5.47. The services' requirement in CPUs is the knob:
jobs get the other CPUs. Every five seconds. Rama needs a reserve of zero, which is not the default.
"""

from collections.abc import Sequence
from dataclasses import dataclass
import math

from controller.simulation.plant import Plant
from controller.simulation.policies.fixed import set_idle
from controller.simulation.policies.policy import Meter

__all__ = ("TARGETS", "Indicator", "Katalyst", "KatalystSettings", "Rama", "Regulator")

_LOWEST_SUM, _HIGHEST_SUM = -2.0, 10.0
_LEAST_CPUS = 4
_RECLAIM_CPUS = 4
_RESERVE_CPUS = 4.0
_HOLD_S = 30.0
_START_S = 30.0  # no advice before
_USE_FACTOR = 1.25


@dataclass(frozen=True, slots=True)
class Indicator:
    """An indicator of rama: target, gains above and below it, and its dead band as ratios."""

    target: float
    gain_up: float
    gain_down: float
    band_up: float
    band_down: float


# ms of waiting per second and CPU; busy share of the CPUs; cycles per instruction.
TARGETS = {
    "sched_wait": Indicator(460.0, 0.05, 0.009, 0.05, 0.20),
    "usage": Indicator(0.8, 0.1, 0.04, 0.01, 0.06),
    "cpi": Indicator(1.4, 0.1, 0.04, 0.0, 0.02),
}


class Rama:
    """The controller: proposals of requirements, in CPUs between *least* and *most*."""

    def __init__(self, indicators: Sequence[Indicator], least: float, most: float) -> None:
        self._indicators = indicators
        self._least, self._most = least, most
        self.sums = [0.0] * len(indicators)
        self._last = [math.nan] * len(indicators)

    def propose(self, values: Sequence[float], current: float) -> float:
        """Return the highest proposal; *values* in the order of the indicators, 0: none.

        Without any value the proposal is *current*.
        """
        proposals = [
            self._propose(index, value, current) for index, value in enumerate(values) if value > 0
        ]
        return max(proposals, default=current)

    def _propose(self, index: int, value: float, current: float) -> float:
        one = self._indicators[index]
        change = 0.0
        relative = value / one.target - 1.0
        if relative > one.band_up or relative < -one.band_down:
            error = math.log(value / one.target)
            change = (one.gain_up if error >= 0 else one.gain_down) * self._most * error
        if current != self._last[index]:
            self.sums[index] = 0.0
        self._last[index] = current
        self.sums[index] = min(_HIGHEST_SUM, max(_LOWEST_SUM, self.sums[index] + change))
        return min(self._most, max(self._least, current + self.sums[index]))


class Regulator:
    """Rounds a requirement to CPUs, whole cores with SMT, and limits how fast it changes."""

    def __init__(self, start: int, least: int, most: int, smt: bool) -> None:
        self.cpus = start
        self._least, self._most, self._smt = least, most, smt
        self._lowered_s = -math.inf

    def update(self, wanted: float, now_s: float) -> int:
        """Return the CPUs after *wanted*: at once up to 10 more, 2 less every 30 s."""
        count = math.ceil(wanted)
        if self._smt:
            count += count % 2
        if count < self.cpus and now_s < self._lowered_s + _HOLD_S:
            return self.cpus
        count = max(self.cpus - 2, min(self.cpus + 10, count))
        count = max(self._least, min(self._most, count))
        if count < self.cpus:
            self._lowered_s = now_s
        self.cpus = count
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class KatalystSettings:
    """``rama``: the controller with *indicators*, otherwise canonical.

    Measurements are of the last five seconds, fresher than upstream's. ``idle``: cpu.idle of jobs.
    """

    rama: bool = False
    indicators: tuple[tuple[str, float], ...] = (("sched_wait", 460.0), ("usage", 0.8))
    idle: bool = True


class Katalyst:
    """CPU provision on a plant: jobs get the CPUs that services do not require."""

    interval_s = 5.0

    def __init__(self, plant: Plant, settings: KatalystSettings | None = None) -> None:
        self._plant = plant
        self._settings = settings or KatalystSettings()
        self._meter = Meter(plant)
        machine = plant.machine
        # On a node of less than 16 CPUs upstream's four would leave little or nothing to decide.
        kept = max(1, min(_RECLAIM_CPUS, machine.cpus // 4))
        most = max(1, machine.cpus - kept)
        least = min(_LEAST_CPUS, kept, most)
        # What the services' pods would request: the CPUs of their highest load.
        need = sum(each.rate * each.work_s for each in plant.scenario.services)
        start = max(least, min(most, math.ceil(need)))
        self._regulator = Regulator(start, least, most, smt=machine.threads_per_core > 1)
        chosen = [_with_target(name, target) for name, target in self._settings.indicators]
        self._rama = Rama(chosen, least, most)

    def step(self) -> None:
        """Take five seconds."""
        plant, settings = self._plant, self._settings
        reading = self._meter.read()
        if reading is None:
            set_idle(plant, settings.idle)
            self._set_cpuset(self._regulator.cpus)
            return
        if plant.time_s < _START_S:
            return
        required = self._regulator.cpus
        if settings.rama:
            values = {
                "sched_wait": reading.services_delay * 1e3 / required,
                "usage": reading.services / required,
                "cpi": float(reading.cpi.max()),
            }
            wanted = self._rama.propose([values[name] for name, _ in settings.indicators], required)
        else:
            wanted = _USE_FACTOR * reading.services + _RESERVE_CPUS
        self._set_cpuset(self._regulator.update(wanted, plant.time_s))

    def _set_cpuset(self, required: int) -> None:
        self._plant.knobs.cpuset = max(1, self._plant.machine.cpus - required)


def _with_target(name: str, target: float) -> Indicator:
    one = TARGETS[name]
    return Indicator(target, one.gain_up, one.gain_down, one.band_up, one.band_down)
