# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Actuator of core.cookie: the core-scheduling cookie of a group of best-effort workloads.

The target is the group, with scope ``core`` and the name of the group as path. Values are ``0``
and that name. Writing the name registers the group; from then on all tasks in the cgroups of the
group get its cookie, which ``reconcilers/core_scheduling.py`` does through ``start``. Writing ``0``
removes our cookies of the group from all tasks of this host, in whichever cgroup they are now, and
completes when no task carries one.

Measured on 6.12 with a service and best-effort work busy on both threads of two cores: both shared
a core 91 % of the time without a cookie, and 1 % with one, which halves the CPU time of the
service; with cpu.idle in addition 0 %, and the service has 97 % of its CPU time.
"""

from collections.abc import Callable
import errno
import hashlib
import os
from pathlib import Path

from actuators.base import Phase, RefusedError, Trace, no_trace, refused
from actuators.core_scheduling.helper import Helper
from actuators.core_scheduling.job import JobReport, Wanted, erase, reconcile
from actuators.core_scheduling.prctl import unsupported
from actuators.core_scheduling.registry import CookieRegistry
from actuators.journal import JournalError
from actuators.tasks import threads
from controller.core.decision import Action, Outcome
from controller.core.model import Knob, KnobValue, Target, TargetKind

__all__ = ("BEST_EFFORT", "CoreCookie", "core_group")

# The group of all best-effort workloads without a group of their own.
BEST_EFFORT = "best-effort"
_NONE = KnobValue("0")
_CLEAR_S = 2.0  # longest time that a helper may take to remove cookies


def core_group(name: str) -> Target:
    """Pure: return the target of the group *name*."""
    digest = hashlib.blake2b(name.encode(), digest_size=6).digest()
    return Target(TargetKind.CORE_GROUP, "core", int.from_bytes(digest), name)


class CoreCookie:
    """The actuator of ``Knob.CORE_COOKIE``; implements ``base.Actuator``.

    The cookies of tasks are changed by a ``Helper`` process, at most one at a time.

    :param state_dir: the state directory; the registry of our cookies is in ``cookies`` below it.
    :raises JournalError: the registry cannot be read.
    """

    knob = Knob.CORE_COOKIE
    checks_ancestors = False

    def __init__(self, state_dir: Path) -> None:
        self.registry = CookieRegistry(state_dir / "cookies")
        self._helper: Helper | None = None
        self._carriers: dict[str, list[int]] = {}

    def applies_to(self, target: Target) -> bool:
        """Pure: return whether *target* is a group of workloads that share cores."""
        return target.kind is TargetKind.CORE_GROUP

    def unsupported_reason(self) -> str | None:
        """Return why this host has no core scheduling, or ``None``."""
        return unsupported()

    def read(self, target: Target) -> KnobValue:
        """Return the name of the group if it is registered, otherwise ``0``.

        :raises RefusedError: this host has no core scheduling.
        """
        reason = unsupported()
        if reason is not None:
            raise RefusedError(errno.ENODEV, f"{target.path}: {reason}")
        return KnobValue(target.path) if target.path in self.registry.groups else _NONE

    def apply(self, action: Action, trace: Trace = no_trace) -> Outcome:
        """Register the group, or remove its cookies from all tasks and unregister it."""
        group = action.target.path
        if action.value not in (_NONE, group):
            raise ValueError(f"{action.value!r} is not a value of {self.knob} for {group}")
        try:
            if action.value == _NONE:
                problem = self._clear(group, trace)
                if problem:
                    return refused(action, KnobValue(group), errno.EBUSY, problem)
            elif group not in self.registry.groups:
                trace("before cookie order")
                self.registry.add_group(group)
                trace("after cookie order")
        except (JournalError, OSError) as error:
            return refused(action, self.read(action.target), error.errno, str(error))
        return Outcome(action=action, applied=action.value)

    def intermediate_values(self, previous: KnobValue, value: KnobValue) -> tuple[KnobValue, ...]:
        """Pure: return both values; there is none between them."""
        return (previous, value)

    def matches(self, expected: KnobValue, found: KnobValue) -> bool:
        """Pure: return whether the values are equal."""
        return expected == found

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: cookies complement cpu.idle, so they are set after it and removed before it."""
        return Phase.ANY if value == _NONE else Phase.LOOSEN

    def start(self, wanted: Callable[[], Wanted], *, create: bool) -> None:
        """Start a helper that reconciles the cookies of tasks; ``poll`` returns its report.

        :param wanted: returns the tasks to examine, with the group of each.
        :param create: whether *wanted* returns all tasks of its groups. Only then may a new cookie
            be created for a group of which no task carries one.
        :raises OSError: no process could be created.
        """
        registry, carriers = self.registry, self._carriers
        # Init, the agent and its parent must not get a cookie, even in a best-effort cgroup.
        excluded = frozenset((1, *threads(os.getpid()), *threads(os.getppid())))

        def job() -> str:
            return reconcile(
                registry, wanted, excluded=excluded, carriers=carriers, may_create=create
            ).dump()

        self._helper = Helper(job)

    def poll(self) -> JobReport | None:
        """Return the report of the helper after its end, and ``None`` before."""
        answer = None if self._helper is None else self._helper.poll()
        if answer is None:
            return None
        self._helper = None
        self.registry.reload()
        report = JobReport.load(answer)
        for group, cookie in report.created.items():
            self.registry.remember(group, cookie)  # its file may be lost already
        self._carriers |= report.carriers
        return report

    @property
    def busy(self) -> bool:
        """Whether a helper is running."""
        return self._helper is not None

    def cancel(self) -> None:
        """Kill a running helper."""
        if self._helper is not None:
            self._helper.kill()
            self._helper = None
            self.registry.reload()

    def _clear(self, group: str, trace: Trace) -> str:
        """Remove the cookies of *group* from all tasks; return the problem, or an empty text."""
        self.cancel()
        if group not in self.registry.groups:
            return ""
        ours = {cookie: owner for cookie, owner in self.registry.cookies.items() if owner == group}
        trace("before cookies cleared")
        if ours:
            report = JobReport.load(Helper(lambda: erase(ours).dump()).wait(_CLEAR_S))
            if report.problem:
                return f"{group}: {report.problem}"
        trace("after cookies cleared")
        self.registry.remove_group(group)
        return ""
