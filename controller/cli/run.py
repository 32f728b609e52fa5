# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint run``: starts the guardian, which runs the agent in a child process."""

import argparse
import contextlib
import os
from pathlib import Path
import signal
import sys

from controller.cli.common import DONE, FAILED, WRONG, add_config, fail

__all__ = ("HELP", "add_arguments", "main")

HELP = "run the agent: measure, plan and, in enforce mode, act"
_NICE = -10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    add_config(parser)
    parser.add_argument(
        "--mode", choices=("observe", "enforce"), help="override the mode of the configuration"
    )
    parser.add_argument("--once", action="store_true", help="measure and plan once, then exit")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write a recording (.jsonl.gz)")
    parser.add_argument(
        "--no-guardian",
        action="store_true",
        help="run without the parent process that restores after a crash; for debugging",
    )


def main(arguments: argparse.Namespace) -> int:
    """Run until a signal; return the exit code: 0 done, 1 failed, 2 invalid configuration."""
    if os.geteuid() != 0:
        return fail("run needs root; 'sweetpoint doctor' lists why", FAILED)
    # The agent must not wait in the run queues that it is there to shorten, least of all while it
    # compiles its probes on a node that is overloaded already. Children inherit all of it.
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    try:
        return _run(arguments)
    finally:
        from controller.host.own_cgroup import leave_own_cgroup

        leave_own_cgroup()


def _run(arguments: argparse.Namespace) -> int:
    from controller.agent import guardian
    from controller.host.state_dir import Lock, LockError

    code, state_dir = _checked_state_dir(arguments)
    if state_dir is None:
        return code
    try:
        lock = Lock(state_dir)
    except LockError as error:
        return fail(error, FAILED)
    if arguments.no_guardian:
        _restore(state_dir)
        return _agent(arguments, guardian.Heartbeat())
    return guardian.run(
        lambda heartbeat: _agent(arguments, heartbeat),
        lock=lock,
        restore=lambda: _restore(state_dir),
    )


def _checked_state_dir(arguments: argparse.Namespace) -> tuple[int, Path | None]:
    """Check the configuration; return (exit code, its state directory or ``None``).

    In a child, so that the libraries which that needs do not stay in the guardian's memory. The
    child also moves this process into the agent's own cgroup.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        code = FAILED
        try:
            _enter_own_cgroup()  # before the imports that take CPU time
            code = _send_state_dir(arguments, writer)
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as answer:
        text = answer.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return (code, Path(text)) if code == DONE else (code if code > 0 else FAILED, None)


def _enter_own_cgroup() -> None:
    from controller.host.own_cgroup import enter_own_cgroup

    enter_own_cgroup((os.getppid(), os.getpid()))


def _send_state_dir(arguments: argparse.Namespace, writer: int) -> int:
    from controller.config.load import ConfigError, load

    try:
        config = load(arguments.config)
    except ConfigError as error:
        return fail(error, WRONG)
    except OSError as error:
        return fail(error, FAILED)
    os.write(writer, os.fsencode(config.state_dir))
    return DONE


def _agent(arguments: argparse.Namespace, heartbeat: object) -> int:
    # Before numpy's library starts threads, which inherit the mask. A signal during a tick would
    # otherwise be delivered to a thread that does not block it, and a reload would be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    from actuators.journal import JournalError
    from controller.agent.agent import Agent, Options
    from controller.agent.guardian import Heartbeat
    from controller.config.load import ConfigError
    from controller.core.model import Mode
    from controller.host.facts import HostError

    assert isinstance(heartbeat, Heartbeat)
    options = Options(
        config=arguments.config,
        mode=None if arguments.mode is None else Mode(arguments.mode),
        once=arguments.once,
        record=arguments.record,
    )
    try:
        agent = Agent(options, heartbeat)
    except ConfigError as error:
        # A restart, which is what the guardian does after exit code 1, would not help here.
        return fail(error, WRONG)
    except (HostError, JournalError, OSError) as error:
        # The host may offer tomorrow what it lacks today, and without an agent it is unprotected.
        return fail(error, FAILED)
    return agent.run()


def _restore(state_dir: Path) -> bool:
    from controller.agent.restore import restore_knobs

    return restore_knobs(state_dir)
