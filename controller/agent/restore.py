# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint release``: put every knob back, with or without an agent that still runs.

Also what the guardian runs after the agent's death: the same restore, told to the log.
"""

import logging
import os
from pathlib import Path
import signal
import sys
import time

from actuators import registry
from actuators.base import Restored, RestoreReport
from actuators.core_scheduling.cookie import CoreCookie
from actuators.executor import restore_leftovers
from actuators.journal import JournalError
from controller.host.facts import HostError, find_cgroup_layout
from controller.host.state_dir import Lock, LockError, owners

__all__ = ("release", "restore_knobs")

_log = logging.getLogger(__name__)

_LOOK_S = 0.05


def restore_knobs(state_dir: Path) -> bool:
    """Restore what the journal below *state_dir* holds and log what is worth knowing.

    The caller holds the lock. Returns whether nothing of ours is left; every trouble has been
    logged in one line then. Raises nothing that is not a bug.
    """
    try:
        report = _restore(state_dir)
    except (JournalError, HostError) as error:
        _log.error("%s", error)
        return False
    for result in report.results:
        quiet = result.result in (Restored.ALREADY, Restored.GONE)
        level = logging.DEBUG if quiet else logging.INFO
        if result.result in (Restored.FAILED, Restored.UNKNOWN):
            level = logging.ERROR
        _log.log(level, "%s: %s: %s", result.subject, result.result, result.message)
    return report.clean


def release(state_dir: Path, *, stop: bool = False, timeout_s: float = 15.0) -> int:
    """Undo everything and print what became of each knob.

    :param stop: stop a running agent first; without it a running agent is an error.
    :param timeout_s: how long the agent may take to stop; then it is killed.
    :return: the exit code: 0 if nothing of ours is left, 1 if something is or if an agent runs.
    """
    try:
        lock = _acquire(state_dir, timeout_s if stop else None)
    except LockError as error:
        print(f"sweetpoint: {error}", file=sys.stderr)
        return 1
    try:
        report = _restore(state_dir)
    except (JournalError, HostError) as error:
        print(f"sweetpoint: {error}", file=sys.stderr)
        return 1
    finally:
        lock.close()
    _print(report)
    return 0 if report.clean else 1


def _restore(state_dir: Path) -> RestoreReport:
    actuators = registry.build(find_cgroup_layout(), CoreCookie(state_dir))
    return restore_leftovers(state_dir, actuators)


def _acquire(state_dir: Path, stop_timeout_s: float | None) -> Lock:
    # With a timeout: ask the holders of the lock to stop, then kill them, then fail.
    asked_s = killed_s = None
    while True:
        try:
            return Lock(state_dir)
        except LockError as error:
            now = time.monotonic()
            if stop_timeout_s is None or not error.held:
                raise
            if asked_s is None:
                asked_s = now
                _signal(owners(state_dir)[:1], signal.SIGTERM)
            elif killed_s is None and now - asked_s > stop_timeout_s:
                killed_s = now
                _signal(owners(state_dir), signal.SIGKILL)
            elif killed_s is not None and now - killed_s > stop_timeout_s:
                raise
        time.sleep(_LOOK_S)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        print(f"sending {number.name} to {pid}")
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _print(report: RestoreReport) -> None:
    for result in report.results:
        print(f"{result.result:<9} {result.subject}: {result.message}")
    for path in report.unreadable:
        print(f"damaged   {path}: moved to *.bad; look at the knobs of this cgroup yourself")
    if not report.results and not report.unreadable:
        print("nothing to restore")
