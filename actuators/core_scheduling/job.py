# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs of the helper process: reconcile the cookies of tasks, or remove ours from all tasks.

A job runs in a process of its own, because that process itself carries cookies for a time (see
``helper``). Tasks are handled one by one, not by process, so that a thread with a foreign cookie
keeps it.
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

# A further pass finds tasks that were created during the one before. The last pass is the one
# that finds nothing to do.
_PASSES = 5
_MAX_CARRIERS = 8

# By task, the group whose cookie it is to carry; an empty text for none of ours.
Wanted = Mapping[int, str]


@dataclass(slots=True, kw_only=True)
class JobReport:
    """Report of a job; numbers are tasks.

    ``carrying`` is the number of examined tasks with the wanted cookie in the last pass,
    ``foreign`` that of tasks with a foreign cookie, which are not changed. ``given``, ``cleared``
    and ``failed`` count changes. ``carriers`` has some tasks with a cookie of ours, by group,
    ``cookies`` our cookies that were found or created, ``created`` the latter by group.
    ``uncarried`` is set if a task needed a cookie that no known task carries, and none was allowed
    to be created.
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
    created: dict[str, int] = field(default_factory=dict)

    def dump(self) -> str:
        """Return the report as text."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Self:
        """Return the report in *text*; an empty text is the answer of a helper that failed."""
        return cls(**json.loads(text)) if text else cls(problem="the helper process failed")


@dataclass(slots=True)
class _TaskCensus:
    """Result of one pass over the tasks.

    ``lacking`` has, by group, the tasks without its cookie; ``astray`` those with a cookie of ours
    that are to have none. The other fields are as in ``JobReport``.
    """

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
    """Give tasks the cookies of their groups, and clear those of other tasks in *wanted*.

    :param wanted: called before every pass; tasks that it does not return are not examined.
    :param excluded: tasks that must not get a cookie: init and those of the agent.
    :param carriers: by group, further tasks that may carry its cookie.
    :param may_create: whether a cookie may be created if no known task carries one. This is
        correct only if *wanted* has all tasks of the group; otherwise it could get two cookies.
    """
    report = JobReport()
    seen: set[int] = set()
    try:
        for _ in range(_PASSES):
            census = _survey(registry.cookies, wanted())
            seen |= census.cookies
            lacking = {
                g: [t for t in tids if t not in excluded] for g, tids in census.lacking.items()
            }
            if not census.astray and not any(lacking.values()):
                break
            before = report.given + report.cleared
            if census.astray:
                _clear(census.astray, report)
            for group, tids in lacking.items():
                known = (*census.carriers.get(group, ()), *(carriers or {}).get(group, ()))
                if tids and _obtain_cookie(registry, group, known, report, may_create=may_create):
                    _give(tids, report)
                elif tids:
                    report.uncarried = True
            if report.given + report.cleared == before:
                break  # the rest are kernel threads, or tasks that may not be changed
        report.carrying, report.foreign = census.carrying, census.foreign
        report.carriers = {g: tids[:_MAX_CARRIERS] for g, tids in census.carriers.items()}
    except (OSError, JournalError) as error:
        report.problem = str(error)
    report.cookies = sorted(seen | set(report.created.values()))
    return report


def erase(cookies: Mapping[int, str]) -> JobReport:
    """Remove *cookies* from all tasks of this host; report a problem if a task keeps one."""
    report = JobReport(cookies=sorted(cookies))
    try:
        for _ in range(_PASSES):
            census = _survey(cookies, dict.fromkeys(all_tasks(), ""))
            if not census.astray:
                return report
            _clear(census.astray, report)
        report.problem = report.problem or f"{len(census.astray)} tasks still carry a cookie"
    except OSError as error:
        report.problem = str(error)
    return report


def _survey(cookies: Mapping[int, str], wanted: Wanted) -> _TaskCensus:
    census = _TaskCensus()
    own_pid = os.getpid()
    for tid, group in wanted.items():
        if tid == own_pid:
            continue
        try:
            cookie = cookie_of(tid)
        except OSError:  # the task has ended, or may not be read
            continue
        owner = cookies.get(cookie)
        if owner is not None:
            census.cookies.add(cookie)
        if owner is not None and owner == group:
            census.carrying += 1
            census.carriers.setdefault(group, []).append(tid)
        elif owner is not None and not group:
            census.astray.append(tid)
        elif group and (owner is not None or not cookie):
            census.lacking.setdefault(group, []).append(tid)
        elif group:
            census.foreign += 1
    return census


def _obtain_cookie(
    registry: CookieRegistry,
    group: str,
    known: Iterable[int],
    report: JobReport,
    *,
    may_create: bool,
) -> bool:
    """Take the cookie of *group* from one of the *known* tasks, or create one.

    Return whether this process carries it now.
    """
    ours = {cookie for cookie, owner in registry.cookies.items() if owner == group}
    for tid in known:
        with contextlib.suppress(OSError):  # the task has ended
            if take_from(tid) in ours:
                return True
    if not may_create:
        return False
    cookie = create()
    registry.add_cookie(group, cookie)
    report.created[group] = cookie
    return True


def _clear(tids: Iterable[int], report: JobReport) -> None:
    # A task without a cookie passes on that state, so this process has to be without one first.
    for donor in (0, os.getppid(), 1):
        if donor:
            with contextlib.suppress(OSError):
                take_from(donor)
        if not cookie_of(0):
            break
    else:
        raise OSError("found no task without a cookie, which is needed to clear others")
    for tid in tids:
        report.cleared += _pass_on(tid, report)


def _give(tids: Iterable[int], report: JobReport) -> None:
    for tid in tids:
        # Kernel threads accept a cookie as well, and would then keep services off their cores.
        if not is_kernel_thread(tid):
            report.given += _pass_on(tid, report)


def _pass_on(tid: int, report: JobReport) -> bool:
    try:
        give_to(tid)
    except ProcessLookupError:
        return False
    except OSError as error:
        report.failed += 1
        report.problem = f"task {tid}: {error.strerror}"
        return False
    return True
