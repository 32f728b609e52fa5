# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Policies without feedback: nothing, CPU shares, sched-idle, a constant limit."""

import math

from controller.simulation.plant import Plant

__all__ = ("Fixed",)

# Weight of the besteffort cgroup that kubelet sets: MinShares, pkg/kubelet/cm/helpers_linux.go.
KUBELET_WEIGHT = 2.0


class Fixed:
    """Sets knobs once: sched-idle where the machine has it, the weight, a quota for all jobs.

    *quota* is in CPUs, in periods of 100 ms.
    """

    interval_s = 1e9

    def __init__(
        self, plant: Plant, idle: bool = False, weight: float | None = None, quota: float = math.inf
    ) -> None:
        self._plant = plant
        self._idle = idle
        self._weight = weight
        self._quota = quota

    def step(self) -> None:
        """Set the knobs."""
        knobs = self._plant.knobs
        set_idle(self._plant, self._idle)
        if self._weight is not None:
            knobs.weight[:] = self._weight
        knobs.all_quota = self._quota


def set_idle(plant: Plant, idle: bool = True) -> None:
    """Make the jobs sched-idle if the machine has it; kubelet's weight otherwise."""
    if idle and plant.machine.sched_idle:
        plant.knobs.idle[:] = True
    elif idle:
        plant.knobs.weight[:] = KUBELET_WEIGHT
