# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""core.cookie: whether a group of best-effort workloads has a core-scheduling cookie.

The target is the group: scope ``core``, the group's name as path. The value is ``0`` or that
name. Writing the name is a standing order: it is written down, and from then on whoever is in
the group's cgroups gets the cookie (``reconcilers/core_scheduling.py`` sees to that, through
``start``). Writing ``0`` takes our cookies from every task of this host that carries one,
wherever it is now, and is done when none is left.

Measured on 6.12 with a service and best-effort work busy on both threads of two cores: together
91 % of the time without a cookie, 1 % with one, which halves the service; with cpu.idle beside
it 0 %, and the service has 97 % of its time.
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

# The group of all workloads that name none.
BEST_EFFORT = "best-effort"
_NONE = KnobValue("0")
_CLEAR_S = 2.0


def core_group(name: str) -> Target:
    """Pure: the target of the group *name*."""
    digest = hashlib.blake2b(name.encode(), digest_size=6).digest()
    return Target(TargetKind.CORE_GROUP, "core", int.from_bytes(digest), name)


class CoreCookie:
    """The actuator of ``Knob.CORE_COOKIE``; implements ``base.Actuator``.

    :param state_dir: where the registry of our cookies is kept, in ``cookies``.
    :raises JournalError: the registry cannot be read.
    """

    knob = Knob.CORE_COOKIE
    checks_ancestors = False

    def __init__(self, state_dir: Path) -> None:
        self.registry = CookieRegistry(state_dir / "cookies")
        self._helper: Helper | None = None
        self._witnesses: dict[str, list[int]] = {}

    def applies_to(self, target: Target) -> bool:
        """Pure: whether *target* is a group of workloads that share cores."""
        return target.kind is TargetKind.CORE_GROUP

    def unsupported_reason(self) -> str | None:
        """Return why this host has no core scheduling, or ``None``."""
        return unsupported()

    def read(self, target: Target) -> KnobValue:
        """Return whether the group is to carry a cookie.

        :raises RefusedError: there is no core scheduling here.
        """
        why_not = unsupported()
        if why_not is not None:
            raise RefusedError(errno.ENODEV, f"{target.path}: {why_not}")
        return KnobValue(target.path) if target.path in self.registry.groups else _NONE

    def apply(self, action: Action, trace: Trace = no_trace) -> Outcome:
        """Order a cookie for the group, or take it from everybody; see the module."""
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
        """Pure: both values, with nothing between them."""
        return (previous, value)

    def matches(self, expected: KnobValue, found: KnobValue) -> bool:
        """Pure: equal."""
        return expected == found

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: a cookie goes with sched-idle: made after it, taken back before."""
        return Phase.ANY if value == _NONE else Phase.LOOSEN

    def start(self, wanted: Callable[[], Wanted], *, create: bool) -> None:
        """Have a helper bring the cookies of the *wanted* tasks in line, beside the agent.

        ``poll`` tells what came of it; only one runs at a time.

        :param create: whether *wanted* names everybody, so that a cookie that none of them
            carries may be made.
        :raises OSError: no process could be made.
        """
        registry, carriers = self.registry, self._witnesses
        # The agent and its parent, should they be in a best-effort cgroup themselves.
        excluded = frozenset((1, *threads(os.getpid()), *threads(os.getppid())))

        def job() -> str:
            return reconcile(
                registry, wanted, excluded=excluded, carriers=carriers, may_create=create
            ).dump()

        self._helper = Helper(job)

    def poll(self) -> JobReport | None:
        """Return the report of the helper once it has ended, and ``None`` before."""
        answer = None if self._helper is None else self._helper.poll()
        if answer is None:
            return None
        self._helper = None
        self.registry.reload()
        report = JobReport.load(answer)
        self._witnesses |= report.carriers
        return report

    @property
    def busy(self) -> bool:
        """Whether a helper is at work."""
        return self._helper is not None

    def cancel(self) -> None:
        """End a helper that is at work."""
        if self._helper is not None:
            self._helper.kill()
            self._helper = None
            self.registry.reload()

    def _clear(self, group: str, trace: Trace) -> str:
        """Take the cookies of *group* from all tasks; why that did not work, or nothing."""
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
