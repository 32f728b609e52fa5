# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Begins the trials of the section ``trial``: ``sweetpoint trial --background``, one after another.

A trial is a process of its own, which asks this agent for its pages as any trial does. What is kept
of it is the record in the data directory. So an agent that was started again goes on with it. A
label names the settings that it began with: with others, it is ended and the next one begins.
"""

from collections.abc import Callable, Sequence
import logging
from pathlib import Path
import subprocess
import time

from controller.config.load import Config
from controller.host.names import printable
from controller.host.python_child import python_child
from controller.host.state_dir import owners
from controller.host.trial_record import (
    Record,
    RecordError,
    digest_of,
    read_record,
    record_file,
    trial_directory,
)

__all__ = ("Trials",)

_log = logging.getLogger(__name__)

_LABEL = "configuration "
_LOOK_EVERY_S = 10.0
# After a trial that was ended early or whose process was gone, and after one that hurt a service
# with the same configuration.
_AGAIN_S, _AFTER_HARM_S = 300.0, 86_400.0
_MOST_TEXT = 400
# So many files with pairs are kept, the present one included. One of a day has half a megabyte.
_PREFIX, _MOST_FILES = "configured-", 16

# Starts a command and returns at once.
Start = Callable[[Sequence[str]], "subprocess.Popen[str]"]


def _start(command: Sequence[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


class Trials:
    """For the control thread, which calls ``poll`` often.

    :param file: the configuration file, absolute.
    :param start: see ``Start``.
    :param clock: seconds of a clock that is never set.
    :param wall_clock: seconds since 1970.
    """

    def __init__(
        self,
        file: Path,
        start: Start = _start,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._file, self._start, self._clock, self._wall_clock = file, start, clock, wall_clock
        self._command: subprocess.Popen[str] | None = None
        self._next_s = self._not_before_s = clock()
        self._problem = ""

    def poll(self, config: Config, configuration: tuple[str, str], *, ready: bool) -> None:
        """Begin a trial that is due, or end the one that the section no longer wants.

        :param configuration: digests of the agent's files and of its cluster's profiles.
        :param ready: the agent enforces, and neither a pause nor a trial is in force.
        """
        now_s = self._clock()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _LOOK_EVERY_S
        if self._command is not None and not self._has_ended(self._command):
            return
        settings = config.trial
        label = _LABEL + digest_of(*settings.options)
        runs = bool(owners(trial_directory(config.data_dir)))
        record = self._record(config.data_dir)
        wanted = settings.enabled and not _is_promoted(config)
        if runs:
            ours = record is not None and record.ended is None and record.label.startswith(_LABEL)
            if record is not None and ours and not (wanted and record.label == label):
                self._run(config, "--stop", "--label", record.label)
            return
        if not wanted or not ready or now_s < self._not_before_s:
            return
        if settings.policy and settings.policy not in config.in_force.names:
            return
        if record is not None and record.label == label:
            digest = digest_of(*configuration)
            if self._age_s(config.data_dir) < _rest_s(record, digest):
                return
        self._not_before_s = now_s + _AGAIN_S
        pairs = ("--blocks", str(self._new_file(config.data_dir)))
        self._run(config, "--background", "--label", label, *pairs, *settings.options)

    def _new_file(self, data_dir: Path) -> Path:
        """Return the file for the pairs of the next trial; the oldest ones are removed."""
        directory = data_dir / "trials"
        for path in sorted(directory.glob(f"{_PREFIX}*.jsonl"))[: 1 - _MOST_FILES]:
            try:
                path.unlink()
            except OSError as error:
                _log.warning("trial: %s: %s", path, error.strerror)
        now = time.gmtime(self._wall_clock())
        return directory / f"{_PREFIX}{time.strftime('%Y-%m-%dT%H%M%SZ', now)}.jsonl"

    def _run(self, config: Config, *options: str) -> None:
        # Those of the file may have changed since the start of the agent.
        directories = f"--state-dir={config.state_dir}", f"--data-dir={config.data_dir}"
        words = ("trial", "--config", str(self._file), *directories, *options)
        _log.info("trial: %s", " ".join(options))
        try:
            self._command = self._start(python_child("controller.cli.main", *words))
        except OSError as error:
            _log.warning("trial: cannot be started: %s", error.strerror)

    def _has_ended(self, command: "subprocess.Popen[str]") -> bool:
        """Return whether the command is over, and log why it failed."""
        if command.poll() is None:
            return False
        _, errors = command.communicate()
        self._command = None
        if command.returncode:
            lines = errors.strip().splitlines() or [f"exit code {command.returncode}"]
            _log.warning("trial: %s", printable(lines[-1])[:_MOST_TEXT])
        return True

    def _record(self, data_dir: Path) -> Record | None:
        """Return the record of the last trial; a problem is logged once."""
        problem, record = "", None
        try:
            record = read_record(data_dir)
        except RecordError as error:
            problem = str(error)
        except OSError as error:
            problem = f"{record_file(data_dir)}: {error.strerror}"
        if problem and problem != self._problem:
            _log.warning("trial: %s", problem)
        self._problem = problem
        return record

    def _age_s(self, data_dir: Path) -> float:
        """Return how long ago the record was written; a clock that was set back counts as long."""
        try:
            age_s = self._wall_clock() - record_file(data_dir).stat().st_mtime
        except OSError:
            return _AFTER_HARM_S
        return age_s if age_s >= 0 else _AFTER_HARM_S


def _is_promoted(config: Config) -> bool:
    """Return whether a rollout has put what the section tries in force on all nodes.

    Then nothing is to be judged any more. Without the name of a policy it is the mode.
    """
    promoted = [each for each in config.in_force.entries if each.promoted]
    if policy := config.trial.policy:
        return policy in [each.name for each in promoted]
    return any("mode" in each.sets for each in promoted)


def _rest_s(record: Record, configuration: str) -> float:
    """Return how long after the trial of *record* the next one may begin."""
    if record.hurt:
        return _AFTER_HARM_S if record.configuration == configuration else 0.0
    return 0.0 if record.ended == "" else _AGAIN_S
