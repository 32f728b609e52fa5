# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How long a service takes for its work, waits included, and how much work it does."""

from collections.abc import Mapping
import math
from typing import NamedTuple

from controller.core.indicators.counters import increase
from controller.core.model import CgroupId, WorkloadSample
from controller.core.workload_index import Service

__all__ = ("Pace", "gain", "pace_of")

# A service that uses less runs too rarely for a slowdown.
_LEAST_CPUS = 0.02


class Pace(NamedTuple):
    """Logarithms of a service's time per work (``slowdown``) and of its work (``load``).

    The work is counted in instructions, without counters in packets, without these in CPU time.
    """

    slowdown: float
    load: float


def gain(old: WorkloadSample, new: WorkloadSample, name: str) -> float:
    """Return the growth of the counter *name*; 0 where it is not measured."""
    return float(increase(getattr(old, name), getattr(new, name)))


def pace_of(
    service: Service, changed: Mapping[CgroupId, tuple[WorkloadSample, WorkloadSample]], dt_ns: int
) -> Pace | None:
    """Return the pace of a service in the tick of *dt_ns*; ``None`` if it hardly ran."""
    pairs = [changed[cgroup] for cgroup in service.cgroups if cgroup in changed]

    def total(*names: str) -> float:
        return sum(gain(*pair, name) for pair in pairs for name in names)

    oncpu = total("oncpu_ns")
    if dt_ns <= 0 or oncpu < _LEAST_CPUS * dt_ns:
        return None
    waiting = math.log1p(total("wait_inflicted_ns") / oncpu)
    cycles, instructions = total("cycles"), total("instructions")
    if cycles > 0 and instructions > 0:
        return Pace(math.log(cycles / instructions) + waiting, math.log(instructions / dt_ns))
    packets = total("rx_packets", "tx_packets")
    if packets > 0:
        return Pace(math.log(oncpu / packets) + waiting, math.log(packets / dt_ns))
    return Pace(waiting, math.log(oncpu / dt_ns))
