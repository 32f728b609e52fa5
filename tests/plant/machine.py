# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The physics of the machine: pure functions of CPU shares, siblings, memory and cache.

A *region* of the cache is what best-effort work may use; services may use all of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
import math

import numpy as np
from numpy.typing import NDArray

from tests.plant.jobs import MIB

__all__ = (
    "Floats",
    "Machine",
    "busy_siblings",
    "cache_shares",
    "latency_factor",
    "misses",
    "share",
    "throttle_factor",
)

Floats = NDArray[np.float64]

LINE_BYTES = 64.0


@dataclass(frozen=True)
class Machine:
    """Sizes of the machine. ``peak`` is the memory bandwidth in bytes per second.

    ``idle_level``: cgroups can be sched-idle. ``counters``: there are hardware counters.
    ``partitions``: it may have resctrl, which virtual machines do not.
    """

    cpus: int = 16
    peak: float = 20e9
    cache_bytes: float = 32 * MIB
    ways: int = 16
    system_cpus: float = 0.25
    idle_level: bool = True
    counters: bool = True
    partitions: bool = True


def share(capacity: float, wants: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Divide *capacity* by *weights* (above 0), where nobody gets more than it wants."""
    if sum(wants) <= capacity:
        return [*wants]
    left, weight = max(0.0, capacity), sum(weights)
    got = [0.0] * len(wants)
    # Who wants least for its weight is served first; what it leaves goes to the others.
    for index in sorted(range(len(wants)), key=lambda index: wants[index] / weights[index]):
        got[index] = min(wants[index], left * weights[index] / weight)
        left -= got[index]
        weight -= weights[index]
    return got


def latency_factor(utilisation: float) -> float:
    """Return how much longer an access to memory takes at *utilisation* (0 to 1) of the peak.

    It follows the measured curves of servers: flat, twice as long at 80 %, a wall near the peak.
    """
    used = min(0.97, max(0.0, utilisation))
    return 1.0 + 0.35 * used * used / (1.0 - used)


def throttle_factor(percent: int) -> float:
    """Return how much longer MBA at *percent* makes each access of a core beyond its own caches.

    MBA delays accesses. It is not linear: at "10 %" a core still had 4 of 17.7 GB/s (intel-cmt-cat,
    issue 183).
    """
    return 1.0 / (0.13 + 0.87 * math.pow(percent / 100.0, 1.5))


def busy_siblings(service_cpus: float, batch_cpus: float, cpus: int) -> float:
    """Return the probability that best-effort work runs beside a thread of the service.

    The scheduler fills whole cores first, but not perfectly.
    """
    total = service_cpus + batch_cpus
    if batch_cpus <= 0:
        return 0.0
    paired = min(1.0, 2.0 * max(0.0, total - cpus / 2) / total)
    # Of the other threads that may be the sibling, this part is best-effort.
    others = batch_cpus / max(batch_cpus, total - min(1.0, service_cpus))
    return float((0.8 * paired + 0.2 * min(1.0, total / cpus)) * others)


def misses(cold: Floats, warm: Floats, cached: Floats, working_set: Floats) -> Floats:
    """Return the misses per instruction with *cached* bytes of a *working_set* in the cache."""
    missing = 1.0 - np.minimum(1.0, cached / working_set)
    return np.asarray(warm + (cold - warm) * missing, dtype=np.float64)


def cache_shares(
    cache_bytes: float, region: float, pressure: Floats, working_set: Floats
) -> Floats:
    """Return the bytes of cache that each user ends with; the service is the first one.

    *region* is the part of the cache that best-effort work may use. *pressure* is the rate at which
    each user brings lines in or touches them.
    """
    sets, weights = working_set.tolist(), np.maximum(pressure, 1.0).tolist()
    own = min(sets[0], (1.0 - region) * cache_bytes)
    weights[0] *= max(1e-9, 1.0 - own / sets[0])
    sets[0] -= own
    got = share(region * cache_bytes, sets, weights)
    got[0] += own
    return np.array(got)
