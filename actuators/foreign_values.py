# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Values that another program or the kernel made of ours: what is still ours of them."""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import TypeVar

from controller.core.knob_values import (
    MAX_PERIOD_US,
    Quota,
    format_bandwidth,
    format_disks,
    format_masks,
    format_quota,
    parse_bandwidth,
    parse_disks,
    parse_masks,
    parse_quota,
)
from controller.core.model import Knob, KnobValue

__all__ = ("is_quota_or_doubled", "original_after")

Key = TypeVar("Key", bound=Hashable)
Number = TypeVar("Number", int, float)


def original_after(
    knob: Knob, ours: Collection[KnobValue], found: KnobValue, original: KnobValue
) -> KnobValue:
    """Return what is to be restored where another program has made *found* of one of *ours*.

    A value may have parts: the limits of several disks, of several domains, or a quota and its
    burst. What is as in one of *ours* has its part of *original*, the rest is that of *found*.

    :raises ValueError: one of the texts is not a value of the knob.
    """
    match knob:
        case Knob.CPU_QUOTA:
            return _quota_after([*map(parse_quota, ours)], parse_quota(found), original)
        case Knob.IO_MAX:
            return format_disks(_parts_after(parse_disks, ours, found, original))
        case Knob.LLC_WAYS:
            return format_masks(_parts_after(parse_masks, ours, found, original))
        case Knob.MBA:
            return format_bandwidth(_parts_after(parse_bandwidth, ours, found, original))
    return found


def _quota_after(ours: Collection[Quota], found: Quota, original: KnobValue) -> KnobValue:
    before = parse_quota(original)
    limit = found._replace(burst_us=0)
    doublings = (each for mine in ours for each in _doublings(mine._replace(burst_us=0)))
    quota_us, period_us = (before if limit in doublings else found)[:2]
    is_ours = found.burst_us in {each.burst_us for each in ours}
    burst_us = before.burst_us if is_ours else found.burst_us
    # The kernel refuses a burst above the quota.
    return format_quota(Quota(quota_us, period_us, min(burst_us, quota_us or burst_us)))


def _parts_after(
    parse: Callable[[KnobValue], Mapping[Key, Number]],
    ours: Collection[KnobValue],
    found: KnobValue,
    original: KnobValue,
) -> dict[Key, Number]:
    mine, now, before = [*map(parse, ours)], parse(found), parse(original)
    parts = {}
    for key in {**now, **before}:
        is_ours = any(each.get(key) == now.get(key) for each in mine)
        part = before.get(key) if is_ours else now.get(key)
        if part is not None:
            parts[key] = part
    return parts


def is_quota_or_doubled(expected: KnobValue, found: KnobValue, *, any_period: bool = False) -> bool:
    """Return whether *found* is *expected*, possibly doubled by the kernel.

    When the period timer cannot keep up, the kernel doubles quota, period and burst together
    (sched_cfs_period_timer, commit 4929a4e6faa0, in v5.4).

    :param any_period: whether the periods of two limits may differ.
    :raises ValueError: one of the texts is not a value of cpu.quota.
    """
    got = parse_quota(found)
    limited = got.quota_us is not None
    return any(
        each == (got._replace(period_us=each.period_us) if any_period and limited else got)
        for each in _doublings(parse_quota(expected))
    )


def _doublings(quota: Quota) -> Iterator[Quota]:
    yield quota
    while quota.quota_us is not None and quota.period_us * 2 < MAX_PERIOD_US:
        quota = Quota(quota.quota_us * 2, quota.period_us * 2, quota.burst_us * 2)
        yield quota
