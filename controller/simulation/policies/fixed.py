# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Policies without feedback: nothing, CPU shares, sched-idle, constant limits."""

from collections.abc import Sequence
import math

from controller.simulation.plant import Plant

__all__ = ("Fixed", "set_idle")

# Period of quotas of single jobs: the shortest that core.knob_values.quota_for takes.
_PERIOD_S = 0.01


class Fixed:
    """Sets knobs once: sched-idle where the machine has it, a weight, quotas.

    *quota* is in CPUs for all jobs together, in periods of *period_s*; *quotas* are those of single
    jobs, in periods of 10 ms.
    """

    interval_s = 1e9

    def __init__(
        self,
        plant: Plant,
        idle: bool = False,
        weight: float | None = None,
        quota: float = math.inf,
        period_s: float = 0.1,
        quotas: Sequence[float] = (),
    ) -> None:
        self._plant = plant
        self._idle = idle
        self._weight = weight
        self._quota = quota, period_s
        self._quotas = quotas

    def step(self) -> None:
        """Set the knobs."""
        knobs = self._plant.knobs
        if self._weight is not None:
            knobs.weight[:] = self._weight
        set_idle(self._plant, self._idle)
        knobs.all_quota, knobs.all_period = self._quota
        if self._quotas:
            knobs.quota[:] = self._quotas
            knobs.period[:] = _PERIOD_S


def set_idle(plant: Plant, idle: bool = True) -> None:
    """Make the jobs sched-idle if the machine has it; else they keep kubelet's weight."""
    if idle and plant.machine.sched_idle:
        plant.knobs.idle[:] = True
