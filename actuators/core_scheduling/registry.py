# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Registry of core-scheduling cookies on disk: registered groups, and the cookies of each.

A cookie is only a number, and a task keeps it in every cgroup. After a crash our cookies can
therefore be identified by this registry only: a cookie is stored before the first task of a
workload gets it. The format is that of the journal; records of another boot are dropped.
"""

from collections.abc import Mapping
from pathlib import Path

from actuators.journal import Journal, Record
from controller.core.model import Knob, KnobValue, Target, TargetKind

__all__ = ("CookieRegistry",)

_NONE = KnobValue("0")
_NO_COOKIE = 0  # in place of a cookie, in the record that registers the group


class CookieRegistry:
    """Registered groups by name, and the cookies that were created for them.

    A group usually has one cookie. It gets another one when no known task carries the first any
    more. The methods that write raise JournalError if the directory cannot be used.

    :param directory: created with the first group.
    :raises JournalError: the directory exists and cannot be used.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._journal: Journal | None = None
        self.reload()

    def reload(self) -> None:
        """Read the directory again: a helper process may have added cookies."""
        if self._journal is not None:
            self._journal.reload()
        elif self._directory.is_dir():
            self._journal = Journal(self._directory)

    def renew(self) -> bool:
        """Store again what is lost on disk; see ``Journal.renew``."""
        return self._journal is not None and self._journal.renew()

    @property
    def complete(self) -> bool:
        """Whether everything was on disk at the last ``renew``."""
        return self._journal is None or self._journal.complete

    @property
    def groups(self) -> frozenset[str]:
        """The registered groups: those whose tasks are to carry a cookie."""
        return frozenset(record.target.path for record in self._records())

    @property
    def cookies(self) -> Mapping[int, str]:
        """The group of each cookie of ours."""
        records = self._records()
        return {r.target.id: r.target.path for r in records if r.target.id != _NO_COOKIE}

    def add_group(self, group: str) -> None:
        """Register *group*."""
        if self._journal is None:
            self._journal = Journal(self._directory)
        self._journal.put(_record(group, _NO_COOKIE))

    def add_cookie(self, group: str, cookie: int) -> None:
        """Store *cookie* of a registered group, before another task gets it from the helper."""
        assert self._journal is not None, "a cookie for a group that was never registered"
        self._journal.put(_record(group, cookie))

    def remember(self, group: str, cookie: int) -> None:
        """Take over *cookie*, which a helper created and stored."""
        assert self._journal is not None, "a cookie for a group that was never registered"
        self._journal.remember(_record(group, cookie))

    def remove_cookie(self, cookie: int) -> None:
        """Drop a cookie that no task carries any more: the kernel may reuse its number."""
        for record in self._records():
            if record.target.id == cookie and self._journal is not None:
                self._journal.remove(record)

    def remove_group(self, group: str) -> None:
        """Drop a group with all its cookies; the registration goes last."""
        records = [record for record in self._records() if record.target.path == group]
        for record in sorted(records, key=lambda r: r.target.id == _NO_COOKIE):
            assert self._journal is not None
            self._journal.remove(record)

    def _records(self) -> list[Record]:
        return [] if self._journal is None else list(self._journal.records)


def _record(group: str, cookie: int) -> Record:
    target = Target(TargetKind.CORE_GROUP, "core", cookie, group)
    return Record(target, Knob.CORE_COOKIE, _NONE, _NONE, KnobValue(group))
