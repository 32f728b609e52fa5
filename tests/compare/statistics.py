# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Intervals of means of few paired differences, and medians with their spread."""

from collections.abc import Sequence

import numpy as np

from controller.trial.interval import Interval, mean_interval

__all__ = ("Interval", "mean_interval", "spread")


def spread(values: Sequence[float]) -> Interval:
    """Return the median, the lowest and the highest of *values*."""
    return float(np.median(values)), float(min(values)), float(max(values))
