# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""PARTIES (Chen et al., ASPLOS 2019): trial and error with one unit of one resource at a time.

Written from the published controller's behaviour. Resources are CPUs and cache ways; frequency is
not simulated. A job has no objective and is always the giver, and services may use any CPU, so what
is moved is the jobs' part.
"""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from controller.simulation.plant import Plant
from controller.simulation.policies.fixed import set_idle

__all__ = ("Parties", "Resource", "Wheel")

_UPSIZE_BELOW = 0.05
_DOWNSIZE_ABOVE = 0.20
_JUDGED = 5  # intervals
_LOCKED = 100  # intervals


class Resource(IntEnum):
    """The resources in the order in which they are tried."""

    CPUS = 0
    WAYS = 1


class Wheel:
    """The controller: units of each resource that the jobs hold, between 1 and all but one.

    ``held`` are these units by resource.
    """

    def __init__(self, all_units: Sequence[int], first: Resource) -> None:
        self._all = all_units
        self.held = [units // 2 for units in all_units]
        self._resource = first
        self._trial = 0  # +1: taken from the jobs, -1: given to them, 0: none
        self._slack_before = 0.0
        self._seen: list[float] = []
        self._locked = 0
        self._pause = 0

    def update(self, slack: float, window_slack: float) -> None:
        """Take the slack of this interval and that of the last second; worst service."""
        self._locked = max(0, self._locked - 1)
        if self._trial:
            self._judge(slack)
            return
        if self._pause:
            self._pause -= 1
            return
        if slack < _UPSIZE_BELOW and window_slack < _UPSIZE_BELOW:
            self._move(+1, slack)
        elif slack > _DOWNSIZE_ABOVE and window_slack > _DOWNSIZE_ABOVE and not self._locked:
            self._move(-1, slack)

    def _move(self, direction: int, slack: float) -> None:
        for _ in self.held:
            units = self.held[self._resource] - direction
            if 1 <= units < self._all[self._resource]:
                self.held[self._resource] = units
                self._trial, self._slack_before, self._seen = direction, slack, []
                return
            self._advance()

    def _judge(self, slack: float) -> None:
        self._seen.append(slack)
        if len(self._seen) < _JUDGED:
            return
        direction, self._trial = self._trial, 0
        majority = len(self._seen) // 2 + 1
        if direction > 0:
            better = sum(each > self._slack_before for each in self._seen)
            if better < majority:  # the unit is kept, another resource is next
                self._advance()
        elif sum(each < _UPSIZE_BELOW for each in self._seen) >= majority:
            self.held[self._resource] -= 1
            self._advance()
            self._locked, self._pause = _LOCKED, _JUDGED

    def _advance(self) -> None:
        self._resource = Resource((self._resource + 1) % len(self.held))


class Parties:
    """The wheel on a plant, every 100 ms."""

    interval_s = 0.1

    def __init__(self, plant: Plant, idle: bool = True) -> None:
        self._plant = plant
        self._idle = idle
        units = [plant.machine.cpus]
        if plant.machine.resctrl:
            units.append(plant.machine.ways)
        first = np.random.default_rng(1).integers(len(units))
        self._wheel = Wheel(units, Resource(int(first)))

    def step(self) -> None:
        """Take one interval."""
        plant = self._plant
        if plant.time_s == 0:
            set_idle(plant, self._idle)
        else:
            slacks = [self._slack(0.1), self._slack(1.0)]
            self._wheel.update(*slacks)
        held = self._wheel.held
        plant.knobs.cpuset = float(held[Resource.CPUS])
        if len(held) > Resource.WAYS:
            plant.knobs.ways = held[Resource.WAYS]

    def _slack(self, seconds: float) -> float:
        plant = self._plant
        return min(
            1.0 - (plant.p99_s(index, seconds) or 0.0) / each.slo_s
            for index, each in enumerate(plant.scenario.services)
        )
