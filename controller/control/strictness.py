# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Comparing settings of a knob: whose holds a workload back more, and which are the same."""

from collections.abc import Callable, Mapping

from controller.control.quota import parse_quota
from controller.model import Knob, KnobValue

__all__ = ("is_same_setting", "is_stricter")


def is_stricter(knob: Knob, ours: KnobValue, theirs: KnobValue) -> bool:
    """Return whether *ours* holds a workload back more than *theirs*.

    :raises KeyError: a knob that nothing moves yet.
    """
    return _STRICTER[knob](ours, theirs)


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


_STRICTER: Mapping[Knob, Callable[[KnobValue, KnobValue], bool]] = {
    Knob.CPU_QUOTA: _quota_is_stricter,
    Knob.SCHED_IDLE: _idle_is_stricter,
}
