# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Loads of services over time: steady, stepped, square, bursty."""

import numpy as np

from controller.simulation.machine import Array
from controller.simulation.model import Load

__all__ = ("bursty", "square", "steady", "steps")


def steady(level: float) -> Load:
    """Return a constant load."""
    return lambda times, _: np.full(len(times), level)


def steps(*levels: float, every_s: float) -> Load:
    """Return a load that takes the next of *levels* every *every_s* seconds, and starts again."""
    values = np.array(levels)
    return lambda times, _: np.asarray(values[(times // every_s).astype(int) % len(values)])


def square(low: float, high: float, period_s: float) -> Load:
    """Return a load that changes between *low* and *high* twice in *period_s*."""
    return steps(low, high, every_s=period_s / 2)


def bursty(mean: float, peak: float, on_s: float = 0.3, off_s: float = 1.2) -> Load:
    """Return bursts of *peak* over a lower load, *mean* on average.

    Both states last a random time with the means *on_s* and *off_s* (a Markov-modulated Poisson
    process, as in measured data centre traffic: Benson et al., IMC 2010).
    """
    low = max(0.0, (mean * (on_s + off_s) - peak * on_s) / off_s)

    def load(times: Array, random: np.random.Generator) -> Array:
        cycles = int(times[-1] / (on_s + off_s) * 2) + 20
        lengths = np.column_stack(
            (random.exponential(off_s, cycles), random.exponential(on_s, cycles))
        ).ravel()
        state = np.searchsorted(np.cumsum(lengths), times, side="right") % 2
        return np.where(state == 1, peak, low)

    return load
