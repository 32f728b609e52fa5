# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What is set once and stays: sched-idle for best-effort, burst for services that ask for it."""

from controller.control.latch import Latch
from controller.control.ownership import KnobBook
from controller.control.quota import Quota, format_quota, parse_quota
from controller.decision import Action
from controller.indicators.roster import Roster
from controller.model import Knob, KnobValue
from controller.settings import Profile
from controller.units import NS_PER_SEC

__all__ = ("SchedIdle", "burst_actions")

_HOLD_NS = 60 * NS_PER_SEC
_LONGEST_NS = 3600 * NS_PER_SEC
_IDLE = KnobValue("1")


class SchedIdle:
    """On while a service is present whose profile wants it, and a minute longer."""

    __slots__ = ("_latch", "on")

    def __init__(self) -> None:
        self._latch = Latch(_HOLD_NS, _LONGEST_NS)
        self.on = False

    def end_hold(self) -> None:
        """Let what new profiles do not want end at once, without its minute."""
        self._latch = Latch(_HOLD_NS, _LONGEST_NS)

    def actions(
        self, profiles: tuple[Profile, ...], roster: Roster, book: KnobBook, anew: bool, now_ns: int
    ) -> list[Action]:
        """Return the writes that follow from who is here."""
        on = self._latch.update(any(profile.sched_idle for profile in profiles), now_ns)
        return self._set(on, roster, book, anew, now_ns)

    def safe_actions(
        self, restore: bool, roster: Roster, book: KnobBook, anew: bool, now_ns: int
    ) -> list[Action]:
        """Return the writes without data: where it is, it stays, unless all is to be restored."""
        return self._set(self.on and not restore, roster, book, anew, now_ns)

    def _set(
        self, on: bool, roster: Roster, book: KnobBook, anew: bool, now_ns: int
    ) -> list[Action]:
        if on is self.on and not anew:
            return []
        self.on = on
        actions = []
        for scope, id_ in roster.idle_targets:
            if on:
                text = "a latency-sensitive service is present: sched-idle for best-effort"
                action = book.request(scope, id_, Knob.SCHED_IDLE, _IDLE, text, now_ns)
            else:
                text = "sched-idle is not wanted now: the old weight is back"
                action = book.restore(scope, id_, Knob.SCHED_IDLE, text, now_ns)
            if action is not None:
                actions.append(action)
        return actions


def burst_actions(roster: Roster, book: KnobBook, now_ns: int) -> list[Action]:
    """Return the writes that let services save up quota that they did not use.

    Only where the operator gave them a quota, which stays as it is: a burst is at most the quota
    (kernel/sched/core.c, tg_set_cfs_bandwidth).
    """
    actions = []
    for service in roster.services.values():
        for scope, id_ in service.cgroups:
            key = (scope, id_, Knob.CPU_QUOTA)
            original = book.original(*key)
            quota = None if original is None else parse_quota(original)
            if quota is None:
                continue
            burst_us = service.profile.cpu_burst_us
            if quota.quota_us is None or burst_us <= quota.burst_us:
                action = book.restore(*key, "no burst is wanted now", now_ns)
            else:
                wanted = Quota(quota.quota_us, quota.period_us, min(burst_us, quota.quota_us))
                text = f"profile {service.profile.name}: a burst of {wanted.burst_us} us"
                action = book.request(*key, format_quota(wanted), text, now_ns)
            if action is not None:
                actions.append(action)
    return actions
