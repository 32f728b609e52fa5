# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that kill themselves at a step of their work, and what a restore owes after that."""

from collections.abc import Callable, Iterable
import itertools
import os
from pathlib import Path
import signal
import warnings

import pytest

from actuators.base import Trace
from controller.host.facts import CgroupLayout
from tests.kernel.knobs import executor
from tests.support.waiting import DEADLINE_S

__all__ = ("assert_restorable", "at_steps", "die_at", "wait_for_removed_cgroups")


def die_at(step: int, work: Callable[[Trace], None]) -> str | None:
    """Run *work* in a child process that kills itself by SIGKILL at the *step*-th step.

    Returns the name of that step, or None if *work* ended before it.
    """
    read_fd, write_fd = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 and later warn if threads exist, which the library of numpy may have started.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        seen = 0

        def trace(name: str) -> None:
            nonlocal seen
            if seen == step:
                os.write(write_fd, name.encode())
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1

        try:
            work(trace)
        except BaseException as error:
            os.write(write_fd, f"broken: {error!r}".encode())
            os._exit(1)
        os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as pipe:
        name = pipe.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert not name.startswith("broken"), name
    assert code in (0, -signal.SIGKILL)
    return name if code else None


def at_steps(crash: Callable[[int], str | None], steps: Iterable[int] | None = None) -> list[str]:
    """Call *crash* with the number of each step, or of each of *steps*; return their names.

    :param crash: lets a process die at this step, as ``die_at`` does, restores and compares. It
        returns the name of the step, or None if the process ended before it: that is the last call.
    """
    names: list[str] = []
    for number in itertools.count() if steps is None else steps:
        name = crash(number)
        if name is None:
            break
        names.append(name)
    return names


def wait_for_removed_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lift the executor's limit of a second for a restore that the kernel refuses.

    On v1 a removed cgroup counts against the quota of its parent until the kernel has freed it,
    which takes longer where CPUs are scarce.
    """
    monkeypatch.setattr("actuators.executor._RESTORE_RETRY_S", DEADLINE_S)


def assert_restorable(layout: CgroupLayout, state_dir: Path, after: object = None) -> None:
    """Restore as a new process does: nothing is left, and a second restore has nothing to do.

    :param after: what has happened, for the message.
    """
    report = executor(layout, state_dir).restore_all()
    assert report.clean, (after, report)
    assert not list((state_dir / "journal").iterdir()), after
    assert not executor(layout, state_dir).restore_all().results, (after, "not idempotent")
