# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Canonical texts of knob values: parsing and formatting.

The core and the actuators share these functions, so one text means the same on both sides. A
parser raises ``ValueError`` for a text that is not a value of its knob. The texts:

- ``cpu.quota``: ``QUOTA_US PERIOD_US BURST_US``, the quota ``max`` for no limit;
- ``cpu.idle``: ``1`` (idle) or ``0 WEIGHT`` (normal);
- ``cpuset.cpus``: a cpulist such as ``0-3,8``, or ``all`` for no limit;
- ``memory.high``, ``memory.max``: bytes, or ``max``;
- ``io.weight``: the default weight, 1 to 10,000;
- ``io.max``: ``MAJOR:MINOR KIND=LIMIT ...;...``, sorted by disk, the kinds in the order of
  ``IO_MAX_KINDS`` and only those that limit; ``max`` when nothing does;
- ``resctrl.l3``: ``DOMAIN=MASK;...``, sorted by domain (a cache id), masks in lower-case hex;
- ``resctrl.mb``: ``DOMAIN=VALUE;...``, sorted by domain, decimal;
- ``tc.ceiling``: ``EGRESS INGRESS`` in bytes per second, 0 for a direction without shaping.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
import math
from typing import NamedTuple

from controller.core.model import Knob, KnobValue
from controller.core.units import parse_cpu_list

__all__ = (
    "ALL_CPUS",
    "IDLE",
    "IO_MAX_KINDS",
    "MAX_PERIOD_US",
    "MIN_QUOTA_US",
    "Quota",
    "cpus_of",
    "disks_in",
    "format_amount",
    "format_bandwidth",
    "format_cpuset",
    "format_disks",
    "format_domains",
    "format_idle",
    "format_masks",
    "format_quota",
    "lowest_ways",
    "lowest_weight",
    "parse_amount",
    "parse_bandwidth",
    "parse_ceilings",
    "parse_cpuset",
    "parse_disks",
    "parse_domains",
    "parse_idle",
    "parse_masks",
    "parse_quota",
    "parse_weight",
    "quota_for",
    "write_text",
)

_NO_LIMIT = KnobValue("max")

# The shortest quota that the kernel accepts: min_cfs_quota_period in kernel/sched/core.c.
MIN_QUOTA_US = 1_000
# A milliCPU of kubelet's usual period is 100 us (MilliCPUToQuota in its cm/helpers_linux.go). The
# factor 4 is left out, because doublings bring it.
_FOREIGN_STEP_US = 25
# The longest period, beyond which the kernel does not double one either: max_cfs_quota_period in
# kernel/sched/core.c.
MAX_PERIOD_US = 1_000_000


class Quota(NamedTuple):
    """A CFS quota in microseconds; ``quota_us`` of ``None`` is no limit."""

    quota_us: int | None
    period_us: int
    burst_us: int

    @property
    def cpus(self) -> float | None:
        """CPUs that the quota allows; ``None`` for no limit."""
        return None if self.quota_us is None else self.quota_us / self.period_us


@lru_cache(maxsize=8192)
def parse_quota(value: KnobValue) -> Quota:
    """Return the quota of a text of cpu.quota.

    :raises ValueError: the text is not canonical.
    """
    quota, period, burst = value.split()
    if int(period) <= 0:
        raise ValueError(f"no period: {value!r}")
    return Quota(None if quota == _NO_LIMIT else int(quota), int(period), int(burst))


def format_quota(quota: Quota) -> KnobValue:
    """Return the canonical text of *quota*."""
    amount = _NO_LIMIT if quota.quota_us is None else quota.quota_us
    return KnobValue(f"{amount} {quota.period_us} {quota.burst_us}")


def quota_for(cpus: float) -> Quota:
    """Return the quota that allows *cpus*, with the shortest sensible period and no burst.

    Best-effort work may use its whole quota in one run at the start of a period, and a service
    waits that long. The period is therefore the shortest within 10 ms to 1 s that leaves the quota
    at least 1 ms.

    The quota is never a multiple of 25 us. With kubelet's usual period of 100 ms its quotas are
    multiples of 100 us, so none is a quota of this function, or one that the kernel doubled. On v1
    quota and period are two files, and the quota alone has to show its writer.
    """
    period_us = round(min(MAX_PERIOD_US, max(10 * MIN_QUOTA_US, MIN_QUOTA_US / cpus)))
    # Rounded up, so that the quota is not below a guaranteed floor.
    quota_us = max(MIN_QUOTA_US, math.ceil(cpus * period_us))
    return Quota(quota_us + (quota_us % _FOREIGN_STEP_US == 0), period_us, 0)


def cpus_of(value: KnobValue) -> float | None:
    """Return the CPUs that a text of cpu.quota allows; ``None`` for no limit.

    :raises ValueError: the text is not canonical.
    """
    return parse_quota(value).cpus


IDLE = KnobValue("1")


def parse_idle(value: KnobValue) -> int | None:
    """Return the weight in a text of cpu.idle; ``None`` for an idle cgroup.

    :raises ValueError: the text is not canonical.
    """
    if value == IDLE:
        return None
    idle, weight = value.split()
    if idle != "0":
        raise ValueError(f"{value!r} is not a value of cpu.idle")
    return int(weight)


def lowest_weight(hierarchy: str) -> KnobValue:
    """Return the text of a normal cgroup of the lowest weight in *hierarchy*."""
    # CGROUP_WEIGHT_MIN in linux/cgroup.h, MIN_SHARES in kernel/sched/core.c.
    return format_idle(1 if hierarchy == "v2" else 2)


def format_idle(weight: int | None) -> KnobValue:
    """Return the text of a normal cgroup of *weight*, or of an idle one for ``None``."""
    return IDLE if weight is None else KnobValue(f"0 {weight}")


ALL_CPUS = KnobValue("all")


def parse_cpuset(value: KnobValue) -> frozenset[int] | None:
    """Return the CPUs of cpuset.cpus; ``None`` for all of them.

    :raises ValueError: the text is not a cpulist.
    """
    return None if value == ALL_CPUS else frozenset(parse_cpu_list(value))


def format_cpuset(cpus: Collection[int]) -> KnobValue:
    """Return the text of *cpus* as the kernel prints them, such as ``0-3,8``."""
    starts = sorted(cpu for cpu in cpus if cpu - 1 not in cpus)
    ends = sorted(cpu for cpu in cpus if cpu + 1 not in cpus)
    pairs = zip(starts, ends, strict=True)
    return KnobValue(",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in pairs))


def write_text(knob: Knob, path: str, value: KnobValue) -> str:
    """Return what a program that wrote *value* did, for people, after the word "set".

    The value of cpu.idle contains the weight of a cgroup that is not idle.
    """
    if knob is Knob.SCHED_IDLE and value != IDLE:
        try:
            return f"the weight of {path} to {parse_idle(value)}"
        except ValueError:
            pass  # in a form of another version
    return f"{knob} of {path} to '{value}'"


def parse_amount(value: KnobValue) -> float:
    """Return the bytes of memory.high: a whole number, or infinity for no limit.

    The number is an ``int``, because a ``float`` is exact only up to 2**53.

    :raises ValueError: the text is not canonical.
    """
    return math.inf if value == _NO_LIMIT else int(value)


def parse_weight(value: KnobValue) -> int:
    """Return the weight of io.weight.

    :raises ValueError: the text is not canonical.
    """
    return int(value)


def format_amount(amount: float) -> KnobValue:
    """Return the text of a finite number, rounded to whole units."""
    return KnobValue(str(round(amount)))


# The kinds of limits in the kernel's order: bytes and operations per second, read and written.
IO_MAX_KINDS = ("rbps", "wbps", "riops", "wiops")


def parse_disks(value: KnobValue) -> dict[tuple[str, str], float]:
    """Return the limits of io.max by disk (``MAJOR:MINOR``) and kind; a missing one is no limit.

    The numbers are whole (``int``), in bytes or operations per second.

    :raises ValueError: the text is not a value of io.max.
    """
    limits: dict[tuple[str, str], float] = {}
    if value == _NO_LIMIT:
        return limits
    for line in value.split(";"):
        name, *pairs = line.split()
        major, minor = name.split(":")
        disk = f"{int(major)}:{int(minor)}"
        for pair in pairs:
            kind, number = pair.split("=")
            if kind not in IO_MAX_KINDS:
                raise ValueError(f"{value!r} is not a value of io.max")
            if number != _NO_LIMIT:
                limits[disk, kind] = int(number)
    return limits


def format_disks(limits: Mapping[tuple[str, str], float]) -> KnobValue:
    """Return the canonical text of the limits of all disks, rounded to whole units."""
    lines = []
    for disk in disks_in(limits):
        kinds = (kind for kind in IO_MAX_KINDS if (disk, kind) in limits)
        words = (f"{kind}={round(limits[disk, kind])}" for kind in kinds)
        lines.append(" ".join((disk, *words)))
    return KnobValue(";".join(lines)) if lines else _NO_LIMIT


def disks_in(keys: Iterable[tuple[str, str]]) -> list[str]:
    """Return the disks of keys of ``parse_disks``, each once, sorted by their numbers."""
    return sorted({disk for disk, _ in keys}, key=_disk_numbers)


def _disk_numbers(disk: str) -> tuple[int, ...]:
    return tuple(int(number) for number in disk.split(":"))


def parse_domains(value: KnobValue, base: int) -> dict[int, int]:
    """Return the numbers of a text of resctrl.l3 (*base* 16) or resctrl.mb (10) by domain.

    :raises ValueError: the text is not canonical.
    """
    numbers = {}
    for part in value.split(";"):
        domain, _, number = part.partition("=")
        numbers[int(domain)] = int(number, base)
    return numbers


def format_domains(numbers: Mapping[int, int], base: int) -> KnobValue:
    """Return the canonical text of *numbers* by domain, hexadecimal for *base* 16."""
    form = "x" if base == 16 else "d"
    return KnobValue(";".join(f"{domain}={numbers[domain]:{form}}" for domain in sorted(numbers)))


def parse_bandwidth(value: KnobValue) -> dict[int, int]:
    """Return the MBA value of each domain, in the unit of the mount (``model.MbaUnit``).

    :raises ValueError: the text is not canonical.
    """
    return parse_domains(value, 10)


def parse_masks(value: KnobValue) -> dict[int, int]:
    """Return the mask of cache ways of each domain.

    :raises ValueError: the text is not canonical.
    """
    return parse_domains(value, 16)


def format_bandwidth(values: Mapping[int, int]) -> KnobValue:
    """Return the canonical text of MBA values."""
    return format_domains(values, 10)


def format_masks(masks: Mapping[int, int]) -> KnobValue:
    """Return the canonical text of masks of cache ways."""
    return format_domains(masks, 16)


def parse_ceilings(value: KnobValue) -> list[float]:
    """Return the ceilings of tc.ceiling in bytes per second: egress, ingress; 0: not shaped.

    :raises ValueError: the text has something else than numbers.
    """
    return [float(word) for word in value.split()]


def lowest_ways(mask: int, ways: int) -> int:
    """Return the lowest run of *ways* adjacent bits in *mask*; *mask* itself if it has none.

    The low end, because on Intel's servers DMA of devices goes to the highest ways.
    """
    run = (1 << ways) - 1
    for shift in range(mask.bit_length()):
        if mask >> shift & run == run:
            return run << shift
    return mask
