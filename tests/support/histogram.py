# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Waits as the probe counts them."""

from bisect import bisect_right

from controller.core.indicators.measurement import LOWER_NS


def index_of(wait_ns: int) -> int:
    """Return the bucket of a wait of *wait_ns* nanoseconds."""
    return bisect_right(LOWER_NS, wait_ns) - 1
