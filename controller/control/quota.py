# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""CFS quota as text and as CPUs.

The canonical text is "QUOTA_US PERIOD_US BURST_US", with "max" for no quota.
"""

from functools import lru_cache
import math
from typing import NamedTuple

from controller.decision import Action
from controller.model import KnobValue

__all__ = (
    "Quota",
    "cpus_of",
    "format_quota",
    "parse_quota",
    "quota_for",
    "quota_text",
    "write_order",
)

# The kernel's limits, kernel/sched/core.c: min_cfs_quota_period and max_cfs_quota_period; the
# least quota is the least period.
_MIN_QUOTA_US = 1_000
_SHORTEST_US = 10_000
_LONGEST_US = 100_000


class Quota(NamedTuple):
    """A CFS quota; ``quota_us`` of ``None`` is no quota."""

    quota_us: int | None
    period_us: int
    burst_us: int

    @property
    def cpus(self) -> float | None:
        """CPUs that the quota allows; ``None`` for no limit."""
        return None if self.quota_us is None else self.quota_us / self.period_us


@lru_cache(maxsize=8192)
def parse_quota(value: KnobValue) -> Quota:
    """Return the quota that a canonical text says.

    :raises ValueError: the text is not canonical.
    """
    quota, period, burst = value.split()
    return Quota(None if quota == "max" else int(quota), int(period), int(burst))


def format_quota(quota: Quota) -> KnobValue:
    """Return the canonical text of *quota*."""
    amount = "max" if quota.quota_us is None else quota.quota_us
    return KnobValue(f"{amount} {quota.period_us} {quota.burst_us}")


def quota_for(cpus: float) -> Quota:
    """Return the quota that allows *cpus*, with the shortest sensible period and no burst.

    All that best-effort may run in a period it runs at once, and a service waits that long: so
    the period is as short as leaves each quota one millisecond, within 10 to 100 ms.
    """
    period_us = round(min(_LONGEST_US, max(_SHORTEST_US, _MIN_QUOTA_US / cpus)))
    # Rounded up: a floor is a promise.
    return Quota(max(_MIN_QUOTA_US, math.ceil(cpus * period_us)), period_us, 0)


def quota_text(cpus: float, original: KnobValue) -> KnobValue:
    """Return the text of the quota that allows *cpus*, whatever the *original* was."""
    return format_quota(quota_for(cpus))


def cpus_of(value: KnobValue) -> float | None:
    """Return the CPUs that a quota's text allows; ``None`` for no limit."""
    return parse_quota(value).cpus


def write_order(action: Action) -> tuple[bool, int]:
    """Return the sort key that keeps children within their parents, as cgroup v1 asks.

    Lower children first, raise parents first.
    """
    depth = action.target.path.count("/")
    lowers = _cpus(action.value) < _cpus(action.previous)
    return (not lowers, -depth if lowers else depth)


def _cpus(value: KnobValue) -> float:
    if len(value.split()) != 3:
        return 0.0
    cpus = parse_quota(value).cpus
    return math.inf if cpus is None else cpus
