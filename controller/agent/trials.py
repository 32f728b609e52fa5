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
        # Until when no trial begins that hurt, by its label and configuration: an operator's trial
        # may have taken the place of its record.
        self._rests_s: dict[tuple[str, str], float] = {}
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
        runs = bool(owners(trial_directory(config.data_dir)))
        record = self._record(config.data_dir)  # after the lock, so it is that of the one that runs
        if runs:
            self._end_other(config, record)
        elif ready and now_s >= self._not_before_s and self._is_due(config, record, configuration):
            self._not_before_s = now_s + _AGAIN_S
            pairs = ("--blocks", str(self._new_file(config.data_dir)))
            options = config.trial.options
            self._run(config, "--background", "--label", _label(config), *pairs, *options)

    def _end_other(self, config: Config, record: Record | None) -> None:
        """End the trial of *record*, which runs, if this agent began it for other settings."""
        if record is None or record.ended is not None or not record.label.startswith(_LABEL):
            return
        if not _is_wanted(config) or record.label != _label(config):
            self._run(config, "--stop", "--label", record.label)

    def _is_due(
        self, config: Config, record: Record | None, configuration: tuple[str, str]
    ) -> bool:
        """Return whether a trial is wanted here and now; that of *record* was the last one."""
        policy = config.trial.policy
        if not _is_wanted(config) or (policy and policy not in config.in_force.names):
            return False
        now_s, label, digest = self._clock(), _label(config), digest_of(*configuration)
        if record is not None and record.label.startswith(_LABEL):
            rest_s = _AFTER_HARM_S if record.hurt else 0.0 if record.ended == "" else _AGAIN_S
            until_s = now_s + rest_s - self._age_s(config.data_dir)
            # After harm with another configuration the next one may begin.
            known = record.configuration if record.hurt else digest
            self._rests_s = {key: at_s for key, at_s in self._rests_s.items() if at_s > now_s}
            self._rests_s[record.label, known] = until_s
        return self._rests_s.get((label, digest), now_s) <= now_s

    def _new_file(self, data_dir: Path) -> Path:
        """Return the file for the pairs of the next trial; files without pairs and old ones go."""
        directory = data_dir / "trials"
        files = sorted(directory.glob(f"{_PREFIX}*.jsonl"))
        kept = [path for path in files if _has_pairs(path)][1 - _MOST_FILES :]
        for path in (each for each in files if each not in kept):
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


def _has_pairs(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.readline()  # the head
            return bool(file.readline())
    except OSError:
        return True


def _label(config: Config) -> str:
    return _LABEL + digest_of(*config.trial.options)


def _is_wanted(config: Config) -> bool:
    """Return whether the section wants trials on some nodes.

    After a rollout has put what is tried in force on all nodes, nothing is to be judged any more.
    Without the name of a policy it is the mode.
    """
    promoted = [each for each in config.in_force.entries if each.promoted]
    policy = config.trial.policy
    judged = any(each.name == policy if policy else "mode" in each.sets for each in promoted)
    return config.trial.enabled and not judged
