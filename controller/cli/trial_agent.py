# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent of this host, for a trial: its page, and a pause of its own."""

from pathlib import Path
import time

from controller.cli.top_pages import Page, SourceError, fetch, own_address
from controller.host.pause_file import (
    EVERYTHING,
    POLICY,
    PauseEntry,
    PauseError,
    change_pauses,
    read_pauses,
)
from controller.trial.runner import TrialEndError

__all__ = ("HostAgent", "SystemClock")


class HostAgent:
    """The agent whose configuration is *config*, with *state_dir*.

    :param policy: what ``pause`` pauses; empty: everything.
    :raises ConfigError: the configuration is invalid.
    :raises SourceError: the agent has no pages.
    """

    def __init__(self, config: Path, state_dir: Path, policy: str = "") -> None:
        self._address = own_address(config)
        self._state_dir = state_dir
        self._what = (POLICY, policy) if policy else (EVERYTHING, "")
        self._until_s: float | None = None

    def first_page(self) -> Page:
        """Return /statusz.

        :raises SourceError: it cannot be had.
        """
        return fetch(*self._address)

    def page(self) -> Page | None:
        """Return /statusz; ``None``: there is no answer now."""
        try:
            return fetch(*self._address)
        except SourceError:
            return None

    def pause(self, until_s: float) -> None:
        """Pause everything, or the policy, until *until_s*, since 1970.

        :raises TrialEndError: the pause cannot be written.
        """
        entry = PauseEntry(*self._what, until_s)
        self._until_s = until_s
        try:
            change_pauses(self._state_dir, [entry], (), time.time())
        except (OSError, PauseError) as error:
            raise TrialEndError(f"the pause cannot be written: {error}") from error

    def resume(self) -> None:
        """End the pause that ``pause`` began, and no other one.

        :raises TrialEndError: it cannot be ended, and ends by itself.
        """
        until_s, self._until_s = self._until_s, None
        if until_s is None:
            return
        entry, now_s = PauseEntry(*self._what, until_s), time.time()
        try:
            if entry in read_pauses(self._state_dir, now_s):
                change_pauses(self._state_dir, (), [entry[:2]], now_s)
        except (OSError, PauseError) as error:
            raise TrialEndError(f"the pause cannot be ended: {error}") from error


class SystemClock:
    """The clock of the system, by which pauses end."""

    def now_s(self) -> float:
        """Return the time since 1970 in seconds."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
