# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A trial in the background of a host: it is begun, found again and ended by other commands.

Its lock is of the same kind as that of an agent. It ends with the process, so a trial that was
killed does not look like one that runs.
"""

from collections.abc import Mapping
import contextlib
from dataclasses import dataclass, replace
from enum import StrEnum
import os
from pathlib import Path
import signal
import sys
import time

from controller.host.state_dir import Lock, LockError, owners
from controller.host.trial_record import (
    MOST_LABEL,
    Record,
    RecordError,
    digest_of,
    read_record,
    record_file,
    trial_directory,
    write_record,
)
from controller.trial.blocks import Arm, Design, Results, TrialError, load

__all__ = ("INTERRUPTED", "Background", "Latest", "State", "latest", "stop")

# Why a trial ended that a command or a signal stopped: what it measured until then is not biased.
INTERRUPTED = "interrupted"

_RUNS = (
    "a trial runs in the background: 'sweetpoint trial --latest' says how it goes on, --stop ends "
    "it"
)
_MOST_TEXT = 400
_END_WITHIN_S, _LOOK_EVERY_S = 60.0, 0.2


class State(StrEnum):
    """How a trial is: it runs, it came to an end, or its process was gone before."""

    RUNNING = "running"
    ENDED = "ended"
    KILLED = "killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Latest:
    """The last trial in the background: ``state``, ``record``, and its ``results`` so far."""

    state: State
    record: Record
    results: Results

    def plain(self) -> Mapping[str, object]:
        """Return how it is, for JSON.

        ``compared`` is equal on two nodes if their pairs compare the same in blocks of equal
        lengths; empty before the first pair.
        """
        design = self.results.design
        return {
            "state": self.state,
            "label": self.record.label,
            "hurt": self.record.hurt,
            "seed": design.seed,
            "pairs": len(self.results.pairs),
            "of": design.pairs,
            "compared": _compared(design, self.record.configuration),
        }


def _compared(design: Design, configuration: str) -> str:
    if not configuration:
        return ""
    lengths = design.enforce_s, design.pause_s, design.washout_s
    return digest_of(configuration, design.policy, design.candidate, *lengths)


class Background:
    """The place of a trial in the background, whose files are below *data_dir*.

    :raises TrialError: a trial runs there, or its lock cannot be had.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        directory = trial_directory(data_dir)
        self._log = directory / "log"
        self._record = Record(file="")
        self._ready = -1
        try:
            self._lock = Lock(directory)
        except LockError as error:
            raise TrialError(
                _RUNS if error.held else f"{directory}: the lock cannot be taken; run as root"
            ) from None

    def begin(self, file: Path, label: str = "") -> None:
        """Note that a trial with *label* begins, whose pairs are in *file*.

        :raises OSError: the record cannot be written.
        """
        self._record = Record(file=str(file.absolute()), label=label[:MOST_LABEL])
        self._write()

    def leave(self) -> bool:
        """Go on in a process of its own; return ``True`` in this one, when that has ``gone_on``.

        The new one has no terminal. What it would print is in the file ``log``.

        :raises TrialError: the new process ended before.
        :raises OSError: there is no room for a process, or the new one cannot write its log.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        ready, self._ready = os.pipe()
        if os.fork():
            os.close(self._ready)
            with os.fdopen(ready, "rb") as pipe:
                if not pipe.read(1):
                    raise TrialError(f"the trial ended at once; {self._log} may say why")
            return True
        os.close(ready)
        os.setsid()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        log = os.open(self._log, flags, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        for fd, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(fd, target)
        return False

    def gone_on(self) -> None:
        """Let the command end that began the trial; in the new process, when it can be stopped."""
        self._lock.set_owners([os.getpid()])  # the command held it, too
        with contextlib.suppress(BrokenPipeError):  # the command was killed
            os.write(self._ready, b"+")
        os.close(self._ready)

    def note(self, configuration: tuple[str, str] | None) -> None:
        """Note the *configuration* of the agent in the last pair."""
        digest = "" if configuration is None else digest_of(*configuration)
        if digest != self._record.configuration:
            self._record = replace(self._record, configuration=digest)
            self._try_to_write()

    def end(self, ended: str, hurt: Arm | str) -> None:
        """Note the end; *ended*: why it ended before its time, empty if it did not."""
        self._record = replace(self._record, ended=ended[:_MOST_TEXT], hurt=str(hurt))
        self._try_to_write()

    def _try_to_write(self) -> None:
        try:
            self._write()
        except OSError as error:  # the pairs are what counts
            print(f"sweetpoint: {record_file(self._data_dir)}: {error.strerror}", file=sys.stderr)

    def _write(self) -> None:
        write_record(self._data_dir, self._record)


def check_none_runs(data_dir: Path) -> None:
    """Check that no trial runs in the background: a second one would end its pauses.

    :raises TrialError: one does.
    """
    if owners(trial_directory(data_dir)):
        raise TrialError(_RUNS)


def latest(data_dir: Path) -> Latest:
    """Return the last trial in the background with its files below *data_dir*.

    :raises TrialError: there is none, or its files are damaged.
    :raises OSError: a file cannot be read.
    """
    # Before the record: a trial that ends meanwhile has written its end.
    runs = bool(owners(trial_directory(data_dir)))
    record = _read(data_dir)
    state = State.RUNNING
    if record.ended is not None:
        state = State.ENDED
    elif not runs:
        state = State.KILLED
    return Latest(state=state, record=record, results=load(Path(record.file)))


def _read(data_dir: Path) -> Record:
    try:
        record = read_record(data_dir)
    except RecordError as error:
        raise TrialError(str(error)) from None
    if record is None:
        raise TrialError("no trial was begun in the background on this host")
    return record


def stop(data_dir: Path, label: str = "") -> bool:
    """End the trial in the background, and wait for its end; ``False``: none runs.

    :param label: only a trial with this label is ended; empty: any one.
    :raises TrialError: it has another label, or it has not ended within a minute.
    """
    directory = trial_directory(data_dir)
    pids = owners(directory)
    if pids and label:
        _check_label(data_dir, label[:MOST_LABEL])
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(pid, signal.SIGTERM)
    until_s = time.monotonic() + _END_WITHIN_S
    while owners(directory):
        if time.monotonic() > until_s:
            raise TrialError(f"it has not ended within {_END_WITHIN_S:.0f} s")
        time.sleep(_LOOK_EVERY_S)
    return bool(pids)


def _check_label(data_dir: Path, label: str) -> None:
    record = _read(data_dir)
    if record.ended is not None:  # that of an earlier trial
        raise TrialError("a trial is just beginning, whose label is not known yet: it goes on")
    if record.label != label:
        has = f"label {record.label!a}" if record.label else "no label"
        raise TrialError(f"the trial in the background has {has}, not {label!a}: it goes on")
