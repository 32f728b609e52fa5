# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The candidate of ``sweetpoint trial --against``: its file, and the agent that takes it."""

from dataclasses import dataclass, replace
from pathlib import Path
import sys
import time

from controller.cli.trial_agent import HostAgent
from controller.config.candidate import Candidate, parse_candidate
from controller.config.load import Config, load
from controller.config.policies import PoliciesInForce
from controller.config.yaml_document import MAX_BYTES, ConfigError, decode_text, read_text
from controller.host.candidate_file import (
    MAX_CANDIDATE_CHARS,
    CandidateEntry,
    CandidateError,
    remove_candidate,
    write_candidate,
)
from controller.trial.runner import TrialEndError

__all__ = ("CandidateAgent", "CandidateFile", "read_candidate_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateFile:
    """A checked ``candidate``, and the text and path of its file."""

    candidate: Candidate
    text: str
    origin: str


def read_candidate_file(path: Path, config: Path) -> CandidateFile:
    """Return the candidate of the file *path*, checked with the configuration *config*.

    ``-`` is the standard input, for a file that only another host has.

    The text that was read counts for the whole trial, whatever becomes of the file.

    :raises ConfigError: one of the two is invalid, or the candidate changes nothing.
    :raises OSError: see ``read_text``.
    """
    origin = str(path)
    if origin == "-":
        origin = "standard input"
        text = decode_text(sys.stdin.buffer.read(MAX_BYTES + 1), origin)
    else:
        text = read_text(path)
    if len(text) > MAX_CANDIDATE_CHARS:
        raise ConfigError([f"{origin}: longer than {MAX_CANDIDATE_CHARS} characters"])
    candidate = parse_candidate(text, origin)
    if _alone(load(config, candidate=candidate)) == _alone(load(config)):
        raise ConfigError([f"{origin}: changes nothing on this node, so there is nothing to try"])
    return CandidateFile(candidate=candidate, text=text, origin=origin)


def _alone(config: Config) -> Config:
    """Return *config* without how it came about."""
    return replace(config, policies=(), in_force=PoliciesInForce())


class CandidateAgent(HostAgent):
    """An agent in which ``pause`` puts a candidate in force, and ``resume`` ends it."""

    def __init__(self, config: Path, state_dir: Path, file: CandidateFile) -> None:
        super().__init__(config, state_dir)
        self._file = file

    def pause(self, until_s: float) -> None:
        """Put the candidate in force until *until_s*, since 1970.

        :raises TrialEndError: it cannot be written.
        """
        entry = CandidateEntry(self._file.text, self._file.origin, until_s)
        self._until_s = until_s
        try:
            write_candidate(self._state_dir, entry, time.time())
        except (OSError, CandidateError) as error:
            raise TrialEndError(f"the candidate cannot be written: {error}") from error

    def resume(self) -> None:
        """End the candidate that ``pause`` began, and no other one.

        :raises TrialEndError: it cannot be ended, and ends by itself.
        """
        until_s, self._until_s = self._until_s, None
        if until_s is None:
            return
        try:
            remove_candidate(self._state_dir, time.time(), until_s)
        except (OSError, CandidateError) as error:
            raise TrialEndError(f"the candidate cannot be ended: {error}") from error
