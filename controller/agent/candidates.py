# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The candidate of a trial that is in force, from its file on this host.

A candidate ends with its time, with the removal of its file, and with this agent. What an agent
finds when it starts is left over: the candidate may be why the one before it died.
"""

from collections.abc import Callable
import contextlib
import logging
from pathlib import Path
import time

from controller.agent.pauses import file_version, since_boot
from controller.config.candidate import Candidate, parse_candidate
from controller.config.yaml_document import ConfigError
from controller.host.candidate_file import CandidateError, candidate_file, read_candidate

__all__ = ("Candidates",)

_log = logging.getLogger(__name__)


class Candidates:
    """For the control thread.

    :param wall_clock: seconds since 1970.
    :param steady_clock: seconds since any time, a suspension of the host included.
    """

    def __init__(
        self,
        state_dir: Path,
        wall_clock: Callable[[], float] = time.time,
        steady_clock: Callable[[], float] = since_boot,
    ) -> None:
        self._state_dir = state_dir
        self._path = candidate_file(state_dir)
        self._wall_clock, self._steady_clock = wall_clock, steady_clock
        with contextlib.suppress(OSError):
            self._path.unlink()
        self._seen = file_version(self._path)  # one that cannot be removed is left alone
        self._candidate: Candidate | None = None
        self._end_s = 0.0  # by the steady clock

    def poll(self) -> Candidate | None:
        """Return the candidate now; the same object as long as nothing changes.

        One that is refused is logged, and there is none.
        """
        seen = file_version(self._path)
        if seen != self._seen:
            self._seen = seen
            try:
                self._candidate = self._read()
            except (CandidateError, ConfigError) as error:
                _log.error("candidate of a trial: %s: ignored", error)
                self._candidate = None
        if self._candidate is not None and self._steady_clock() >= self._end_s:
            self._candidate = None
        return self._candidate

    def _read(self) -> Candidate | None:
        now_s = self._wall_clock()
        entry = read_candidate(self._state_dir, now_s)
        if entry is None:
            return None
        self._end_s = self._steady_clock() + entry.until_s - now_s
        return parse_candidate(*entry)
