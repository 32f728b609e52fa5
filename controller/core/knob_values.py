# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""CFS quota as text and as CPUs.

The canonical text is "QUOTA_US PERIOD_US BURST_US", with "max" for no quota.

Canonical text of memory.high, io.weight and io.max.

Canonical text of resctrl's settings: one number per domain (a cache id).

resctrl.mb is "DOMAIN=VALUE;...", resctrl.l3 "DOMAIN=HEXMASK;...", sorted by domain.

Comparing settings of a knob: whose holds a workload back more, and which are the same.
"""

from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
import math
from typing import NamedTuple, TypeVar

from controller.core.decision import Action
from controller.core.model import Knob, KnobValue

__all__ = (
    "Quota",
    "cpus_of",
    "format_amount",
    "format_bandwidth",
    "format_disks",
    "format_masks",
    "format_quota",
    "is_same_setting",
    "is_stricter",
    "lowest_ways",
    "parse_amount",
    "parse_bandwidth",
    "parse_disks",
    "parse_masks",
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


_NO_LIMIT = KnobValue("max")


def parse_amount(value: KnobValue) -> float:
    """Return a number of memory.high (bytes) or io.weight; infinity for no limit.

    :raises ValueError: the text is not canonical.
    """
    return math.inf if value == _NO_LIMIT else float(value)


def format_amount(amount: float) -> KnobValue:
    """Return the text of a number, in whole units."""
    return KnobValue(str(round(amount)))


def parse_disks(value: KnobValue) -> dict[tuple[str, str], float]:
    """Return the limits of io.max by disk and kind (rbps, wbps, riops, wiops); missing: none.

    :raises ValueError: the text is not canonical.
    """
    limits: dict[tuple[str, str], float] = {}
    for line in value.split(";"):
        if line == _NO_LIMIT:
            continue
        disk, *pairs = line.split()
        for pair in pairs:
            kind, _, number = pair.partition("=")
            if number != _NO_LIMIT:
                limits[disk, kind] = float(number)
    return limits


def format_disks(limits: dict[tuple[str, str], float]) -> KnobValue:
    """Return the text of the limits of all disks, the kinds in the kernel's order."""
    order = ("rbps", "wbps", "riops", "wiops")
    lines = []
    for disk in sorted({disk for disk, _ in limits}, key=_disk_numbers):
        words = (f"{kind}={round(limits[disk, kind])}" for kind in order if (disk, kind) in limits)
        lines.append(f"{disk} {' '.join(words)}")
    return KnobValue(";".join(lines)) if lines else _NO_LIMIT


def _disk_numbers(disk: str) -> tuple[int, ...]:
    return tuple(int(number) for number in disk.split(":"))


def parse_bandwidth(value: KnobValue) -> dict[int, int]:
    """Return the MBA value of each domain.

    :raises ValueError: the text is not canonical.
    """
    return _parse(value, 10)


def parse_masks(value: KnobValue) -> dict[int, int]:
    """Return the mask of cache ways of each domain.

    :raises ValueError: the text is not canonical.
    """
    return _parse(value, 16)


def format_bandwidth(values: Mapping[int, int]) -> KnobValue:
    """Return the canonical text of MBA values."""
    return KnobValue(";".join(f"{domain}={values[domain]}" for domain in sorted(values)))


def format_masks(masks: Mapping[int, int]) -> KnobValue:
    """Return the canonical text of masks."""
    return KnobValue(";".join(f"{domain}={masks[domain]:x}" for domain in sorted(masks)))


def lowest_ways(mask: int, ways: int) -> int:
    """Return the lowest run of *ways* adjacent bits in *mask*; the mask itself if there is none.

    The low end, because on Intel's servers the devices' own writes go to the highest ways.
    """
    run = (1 << ways) - 1
    for shift in range(mask.bit_length()):
        if mask >> shift & run == run:
            return run << shift
    return mask


def _parse(value: KnobValue, base: int) -> dict[int, int]:
    numbers = {}
    for part in value.split(";"):
        domain, _, number = part.partition("=")
        numbers[int(domain)] = int(number, base)
    return numbers


Key = TypeVar("Key", bound=Hashable)


def is_stricter(knob: Knob, ours: KnobValue, theirs: KnobValue) -> bool:
    """Return whether *ours* holds a workload back more than *theirs*.

    A knob that holds nobody back (cpu.burst gives, groups and trees only carry other knobs) has
    no stricter setting.
    """
    compare = _STRICTER.get(knob)
    return compare is not None and compare(ours, theirs)


def is_same_setting(knob: Knob, value: KnobValue, ours: KnobValue) -> bool:
    """Return whether *value* is ours, perhaps after the kernel doubled quota and period.

    When the period timer cannot keep up, sched_cfs_period_timer in kernel/sched/fair.c makes
    both twice as long.
    """
    if value == ours:
        return True
    if knob is not Knob.CPU_QUOTA:
        return False
    now, wanted = parse_quota(value), parse_quota(ours)
    if now.quota_us is None or wanted.quota_us is None or now.period_us < wanted.period_us:
        return False
    # Equal ratios, but for a microsecond of rounding in either quota.
    apart = abs(now.quota_us * wanted.period_us - wanted.quota_us * now.period_us)
    return apart <= now.period_us + wanted.period_us


def _quota_is_stricter(ours: KnobValue, theirs: KnobValue) -> bool:
    mine, other = parse_quota(ours).cpus, parse_quota(theirs).cpus
    return mine is not None and (other is None or mine < other)


def _idle_is_stricter(ours: KnobValue, theirs: KnobValue) -> bool:
    return ours == "1" and theirs != "1"


def _cookie_is_stricter(ours: KnobValue, theirs: KnobValue) -> bool:
    return ours != "0" and theirs == "0"


def _ways_are_stricter(ours: KnobValue, theirs: KnobValue) -> bool:
    return _is_below(_count(parse_masks(ours)), _count(parse_masks(theirs)))


def _count(masks: Mapping[int, int]) -> dict[int, float]:
    return {domain: mask.bit_count() for domain, mask in masks.items()}


def _bandwidth_is_stricter(ours: KnobValue, theirs: KnobValue) -> bool:
    return _is_below(parse_bandwidth(ours), parse_bandwidth(theirs))


def _number_is_stricter(ours: KnobValue, theirs: KnobValue) -> bool:
    return parse_amount(ours) < parse_amount(theirs)


def _numbers_are_stricter(ours: KnobValue, theirs: KnobValue) -> bool:
    return _is_below(dict(enumerate(_numbers(ours))), dict(enumerate(_numbers(theirs))))


def _numbers(value: KnobValue) -> list[float]:
    return [float(word) for word in value.split()]


def _disks_are_stricter(ours: KnobValue, theirs: KnobValue) -> bool:
    return _is_below(parse_disks(ours), parse_disks(theirs))


def _is_below(ours: Mapping[Key, float], theirs: Mapping[Key, float]) -> bool:
    """Whether nothing of *ours* is above *theirs*, and something is below; missing: no limit."""
    pairs = [
        (ours.get(key, math.inf), theirs.get(key, math.inf))
        for key in dict.fromkeys((*ours, *theirs))
    ]
    return all(mine <= other for mine, other in pairs) and any(
        mine < other for mine, other in pairs
    )


_STRICTER: Mapping[Knob, Callable[[KnobValue, KnobValue], bool]] = {
    Knob.CPU_QUOTA: _quota_is_stricter,
    Knob.SCHED_IDLE: _idle_is_stricter,
    Knob.CORE_COOKIE: _cookie_is_stricter,
    Knob.LLC_WAYS: _ways_are_stricter,
    Knob.MBA: _bandwidth_is_stricter,
    Knob.TC_CEILING: _numbers_are_stricter,
    Knob.MEMORY_HIGH: _number_is_stricter,
    Knob.IO_WEIGHT: _number_is_stricter,
    Knob.IO_MAX: _disks_are_stricter,
}
