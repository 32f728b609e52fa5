# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Restore of all knobs from the journal, outside the agent.

``restore_knobs`` is run by the guardian after the agent's death and logs the results. ``release``
is ``sweetpoint release``, which can stop a running agent first and prints the results.
"""

from collections.abc import Iterator
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
from actuators.oom_order import OomOrder
from controller.host.facts import HostError, find_cgroup_layout
from controller.host.names import printable
from controller.host.state_dir import Lock, LockError, owners

__all__ = ("describe", "release", "restore_knobs")

_log = logging.getLogger(__name__)

_RETRY_S = 0.05


def restore_knobs(state_dir: Path) -> bool:
    """Restore every knob in the journal below *state_dir* and log the results.

    The caller holds the lock. Returns whether no value of the agent is left; otherwise each
    problem was logged in one line. Expected errors are logged, not raised.
    """
    try:
        report = _restore(state_dir)
    except (JournalError, HostError) as error:
        _log.error("%s", error)
        return False
    for result in report.results:
        expected = result.result in (Restored.ALREADY, Restored.GONE)
        level = logging.DEBUG if expected else logging.INFO
        if result.result in (Restored.FAILED, Restored.UNKNOWN):
            level = logging.ERROR
        _log.log(level, "%s: %s: %s", result.subject, result.result, result.message)
    return report.clean


def release(state_dir: Path, *, stop: bool = False, timeout_s: float = 15.0) -> int:
    """Restore every knob in the journal below *state_dir* and print the result for each.

    :param stop: stop a running agent first. Without *stop* a running agent is an error.
    :param timeout_s: seconds that the agent has to stop after SIGTERM; then it is killed.
    :return: the exit code: 0 if no value of the agent is left, 1 otherwise or if an agent runs.
    """
    if not state_dir.exists():
        print("\n".join(describe(RestoreReport(results=()))))
        return 0
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
    for line in describe(report):
        print(line)
    return 0 if report.clean else 1


def _restore(state_dir: Path) -> RestoreReport:
    layout = find_cgroup_layout()
    oom_order = OomOrder(layout, state_dir)
    actuators = registry.build(layout, CoreCookie(state_dir), oom_order)
    return restore_leftovers(state_dir, actuators)


def _acquire(state_dir: Path, stop_timeout_s: float | None) -> Lock:
    # With a timeout: SIGTERM to the first holder of the lock, SIGKILL to all of them, then fail.
    term_s = kill_s = None
    while True:
        try:
            return Lock(state_dir)
        except LockError as error:
            now = time.monotonic()
            if stop_timeout_s is None or not error.held:
                raise
            if term_s is None:
                term_s = now
                _signal(owners(state_dir)[:1], signal.SIGTERM)
            elif kill_s is None and now - term_s > stop_timeout_s:
                kill_s = now
                _signal(owners(state_dir), signal.SIGKILL)
            elif kill_s is not None and now - kill_s > stop_timeout_s:
                raise
        time.sleep(_RETRY_S)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        print(f"sending {number.name} to {pid}")
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def describe(report: RestoreReport) -> Iterator[str]:
    """Yield *report* as lines for people.

    Names are shown as text: the owner of a delegated cgroup chooses those below it.
    """
    for result in report.results:
        yield printable(f"{result.result:<9} {result.subject}: {result.message}")
    if not report.results:
        yield "nothing to restore"
