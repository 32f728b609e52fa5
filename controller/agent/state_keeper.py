# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the state directory as the agent needs it, although other programs may remove it.

A cleaner of temporary files, a person or a mount can take the directory away while knobs are held.
The originals are then in this process only, a kill would leave the knobs for good, and the lock
keeps no second agent out. Once a second the lock and the journals are therefore compared with the
disk and stored again.
"""

from collections.abc import Callable, Iterable
import logging
from typing import Protocol

from actuators.journal import JournalError
from controller.core.units import NS_PER_SEC
from controller.host.state_dir import Lock, LockError, StateDirState

__all__ = ("StateKeeper",)

_log = logging.getLogger(__name__)

_PERIOD_NS = 1 * NS_PER_SEC


class _Records(Protocol):
    """What a journal and the registry of cookies have in common."""

    @property
    def complete(self) -> bool: ...
    def renew(self) -> bool: ...


class StateKeeper:
    """Compares *lock* and *journals* with the disk; ``state`` is as of the last ``poll``.

    :param store_again: called after a loss, to store what else belongs there.
    """

    def __init__(
        self, lock: Lock, journals: Iterable[_Records], store_again: Callable[[], None]
    ) -> None:
        self._lock = lock
        self._journals = tuple(journals)
        self._store_again = store_again
        self._due_ns = 0
        self.state = StateDirState()

    def poll(self, now_ns: int) -> bool:
        """Once a second, store again what is lost; return whether every held knob is recorded.

        :raises LockError: another agent has taken the place of the lost lock.
        """
        if now_ns < self._due_ns:
            return True
        lost, problem = False, ""
        # The lock is first: it makes the directory.
        for renew in (self._lock.renew, *(each.renew for each in self._journals)):
            try:
                lost |= renew()
            except LockError as error:
                if error.held:
                    raise
                problem = problem or str(error)
            except JournalError as error:
                problem = problem or str(error)
        self._due_ns = now_ns + _PERIOD_NS
        if lost:
            _log.warning("%s was removed or replaced: stored again", self._lock.directory)
            self._store_again()
        if problem and problem != self.state.problem:
            _log.error("state_dir: %s", problem)
        elif self.state.problem and not problem:
            _log.info("state_dir: %s can be written again", self._lock.directory)
        self.state = StateDirState(problem, self.state.losses + lost)
        return all(each.complete for each in self._journals)
