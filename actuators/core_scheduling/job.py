# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a helper does with cookies: looks at tasks, clears those that must not carry ours, and
hands ours to those that must.

Runs in a process of its own, which carries cookies itself meanwhile (see ``core_helper``).
Tasks are handled one by one and not by process, so that a thread with a cookie of somebody
else keeps it.
"""

from collections.abc import Callable, Iterable, Mapping
import contextlib
from dataclasses import asdict, dataclass, field
import json
import os
from typing import Self

from actuators.core_scheduling.prctl import cookie_of, create, give_to, take_from
from actuators.core_scheduling.registry import CookieRegistry
from actuators.journal import JournalError
from actuators.tasks import all_tasks, is_kernel_thread

__all__ = ("JobReport", "Wanted", "erase", "reconcile")

# Tasks that were made while we looked are found by looking again; it ends when none are left.
_PASSES = 5
_WITNESSES = 8

# Which group's cookie a task is to carry; empty: none of ours.
Wanted = Mapping[int, str]


@dataclass(slots=True, kw_only=True)
class JobReport:
    """What a helper saw and did, in tasks.

    ``carrying`` and ``foreign`` (cookies of somebody else, left alone) are what is so now,
    among the tasks looked at; the other numbers are what was done. ``carriers`` are some tasks
    that carry ours, by group. ``cookies`` are those of ours that were seen or made.
    ``uncarried``: a cookie was wanted, nobody known carries it, and none was to be made.
    """

    carrying: int = 0
    foreign: int = 0
    given: int = 0
    cleared: int = 0
    failed: int = 0
    problem: str = ""
    uncarried: bool = False
    carriers: dict[str, list[int]] = field(default_factory=dict)
    cookies: list[int] = field(default_factory=list)

    def dump(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Self:
        """Return it from text; an empty one is that of a helper that failed."""
        return cls(**json.loads(text)) if text else cls(problem="the helper process failed")


@dataclass(slots=True)
class _TaskCensus:
    """What one look at the tasks found."""

    carrying: int = 0
    foreign: int = 0
    lacking: dict[str, list[int]] = field(default_factory=dict)
    astray: list[int] = field(default_factory=list)
    carriers: dict[str, list[int]] = field(default_factory=dict)
    cookies: set[int] = field(default_factory=set)


def reconcile(
    registry: CookieRegistry,
    wanted: Callable[[], Wanted],
    *,
    excluded: frozenset[int] = frozenset(),
    carriers: Mapping[str, Iterable[int]] | None = None,
    may_create: bool = True,
) -> JobReport:
    """Bring the cookies of the tasks that *wanted* names in line with it, and tell.

    :param wanted: called before every look; a task that it does not name is not looked at.
    :param excluded: tasks that must not get a cookie: the agent's own, the first process.
    :param carriers: tasks that may carry the cookie of a group, beside the wanted ones.
    :param may_create: whether a cookie may be made that none of those carries: only after a
        look at everybody of the group, or it would have two.
    """
    report = JobReport()
    seen: set[int] = set()
    try:
        for _ in range(_PASSES):
            sight = _survey(registry.cookies, wanted())
            seen |= sight.cookies
            lacking = {
                g: [t for t in tids if t not in excluded] for g, tids in sight.lacking.items()
            }
            if not sight.astray and not any(lacking.values()):
                break
            before = report.given + report.cleared
            if sight.astray:
                _clear(sight.astray, report)
            for group, tids in lacking.items():
                known = (*sight.carriers.get(group, ()), *(carriers or {}).get(group, ()))
                if tids and _keep_cookie(registry, group, known, seen, may_create=may_create):
                    _give(tids, report)
                elif tids:
                    report.uncarried = True
            if report.given + report.cleared == before:
                break  # what is left are kernel threads, or tasks that we may not touch
        report.carrying, report.foreign = sight.carrying, sight.foreign
        report.carriers = {g: tids[:_WITNESSES] for g, tids in sight.carriers.items()}
    except (OSError, JournalError) as error:
        report.problem = str(error)
    report.cookies = sorted(seen)
    return report


def erase(cookies: Mapping[int, str]) -> JobReport:
    """Take *cookies* from every task of this host, and tell; a problem if some still have one."""
    report = JobReport(cookies=sorted(cookies))
    try:
        for _ in range(_PASSES):
            sight = _survey(cookies, dict.fromkeys(all_tasks(), ""))
            if not sight.astray:
                return report
            _clear(sight.astray, report)
        report.problem = report.problem or f"{len(sight.astray)} tasks still carry a cookie"
    except OSError as error:
        report.problem = str(error)
    return report


def _survey(cookies: Mapping[int, str], wanted: Wanted) -> _TaskCensus:
    sight = _TaskCensus()
    me = os.getpid()
    for tid, group in wanted.items():
        if tid == me:
            continue
        try:
            cookie = cookie_of(tid)
        except OSError:  # gone, or not for us to see
            continue
        owner = cookies.get(cookie)
        if owner is not None:
            sight.cookies.add(cookie)
        if owner is not None and owner == group:
            sight.carrying += 1
            sight.carriers.setdefault(group, []).append(tid)
        elif owner is not None and not group:
            sight.astray.append(tid)
        elif group and (owner is not None or not cookie):
            sight.lacking.setdefault(group, []).append(tid)
        elif group:
            sight.foreign += 1
    return sight


def _keep_cookie(
    registry: CookieRegistry, group: str, known: Iterable[int], seen: set[int], *, may_create: bool
) -> bool:
    """Have this process carry the cookie of *group*, from one of the *known* tasks or anew."""
    ours = {cookie for cookie, owner in registry.cookies.items() if owner == group}
    for tid in known:
        with contextlib.suppress(OSError):  # it ended meanwhile
            if take_from(tid) in ours:
                return True
    if not may_create:
        return False
    cookie = create()
    registry.add_cookie(group, cookie)
    seen.add(cookie)
    return True


def _clear(tids: Iterable[int], report: JobReport) -> None:
    for donor in (0, os.getppid(), 1):
        if donor:
            with contextlib.suppress(OSError):
                take_from(donor)
        if not cookie_of(0):
            break
    else:
        raise OSError("no task without a cookie to take that from")
    for tid in tids:
        report.cleared += _hand_on(tid, report)


def _give(tids: Iterable[int], report: JobReport) -> None:
    for tid in tids:
        # Those accept a cookie as well, and would then keep services off their cores.
        if not is_kernel_thread(tid):
            report.given += _hand_on(tid, report)


def _hand_on(tid: int, report: JobReport) -> bool:
    try:
        give_to(tid)
    except ProcessLookupError:
        return False
    except OSError as error:
        report.failed += 1
        report.problem = f"task {tid}: {error.strerror}"
        return False
    return True
