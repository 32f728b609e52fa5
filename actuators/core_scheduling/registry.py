# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which groups are to carry a cookie, and which cookies are ours: on disk before they are used.

A cookie is only a number, and tasks keep it wherever they go. So whoever clears up after a
crash finds ours by this registry alone. It is kept like the journal, and dropped with the boot.
"""

from collections.abc import Mapping
from pathlib import Path

from actuators.journal import Journal, Record
from controller.core.model import Knob, KnobValue, Target, TargetKind

__all__ = ("CookieRegistry",)

_NONE = KnobValue("0")
_ORDER = 0  # in place of a cookie: the record that says that there is to be one


class CookieRegistry:
    """Groups by name, each with the cookies that were made for it.

    :param directory: made with the first order.
    :raises JournalError: the directory is there and cannot be used; so all that write it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._journal: Journal | None = None
        self.reload()

    def reload(self) -> None:
        """Read what is on disk: another process may have written it."""
        self._journal = Journal(self._directory) if self._directory.is_dir() else None

    @property
    def groups(self) -> frozenset[str]:
        """The groups that are to carry a cookie."""
        return frozenset(record.target.path for record in self._records())

    @property
    def cookies(self) -> Mapping[int, str]:
        """Our cookies, each with its group."""
        records = self._records()
        return {r.target.id: r.target.path for r in records if r.target.id != _ORDER}

    def add_group(self, group: str) -> None:
        """Write down that *group* is to carry a cookie."""
        if self._journal is None:
            self._journal = Journal(self._directory)
        self._journal.put(_record(group, _ORDER))

    def add_cookie(self, group: str, cookie: int) -> None:
        """Write down that *cookie* is ours, before any task of others carries it."""
        assert self._journal is not None, "a cookie for a group that was never ordered"
        self._journal.put(_record(group, cookie))

    def remove_cookie(self, cookie: int) -> None:
        """Strike out a cookie that no task carries any more: its number may come again."""
        for record in self._records():
            if record.target.id == cookie and self._journal is not None:
                self._journal.remove(record)

    def remove_group(self, group: str) -> None:
        """Strike out a group with all its cookies, the order last."""
        records = [record for record in self._records() if record.target.path == group]
        for record in sorted(records, key=lambda r: r.target.id == _ORDER):
            assert self._journal is not None
            self._journal.remove(record)

    def _records(self) -> list[Record]:
        return [] if self._journal is None else list(self._journal.records.values())


def _record(group: str, cookie: int) -> Record:
    target = Target(TargetKind.CORE_GROUP, "core", cookie, group)
    return Record(target, Knob.CORE_COOKIE, _NONE, _NONE, KnobValue(group))
