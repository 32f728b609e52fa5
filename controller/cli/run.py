# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint run``: the guardian, and under it the agent."""

import argparse
import os
from pathlib import Path
import signal
import sys

from controller.cli.common import DONE, FAILED, WRONG, add_config, tell

__all__ = ("HELP", "add_arguments", "main")

HELP = "the agent: measure, plan, and in enforce mode act"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    add_config(parser)
    parser.add_argument(
        "--mode", choices=("observe", "enforce"), help="takes the place of the configuration's"
    )
    parser.add_argument("--once", action="store_true", help="measure and plan once, then end")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write a recording (.jsonl.gz)")
    parser.add_argument(
        "--no-guardian",
        action="store_true",
        help="without the parent that restores after a crash; for debugging",
    )


def main(arguments: argparse.Namespace) -> int:
    """Run until a signal; return the exit code: 0 done, 1 failed, 2 wrong configuration."""
    from controller.agent import guardian
    from controller.host.state_dir import Lock, LockError

    if os.geteuid() != 0:
        tell("run needs root; 'sweetpoint doctor' says what for")
        return FAILED
    code, state_dir = _checked_state_dir(arguments)
    if state_dir is None:
        return code
    try:
        held = Lock(state_dir)
    except LockError as error:
        tell(error)
        return WRONG
    if arguments.no_guardian:
        _restore(state_dir)
        return _agent(arguments, guardian.Heartbeat())
    return guardian.run(
        lambda heartbeat: _agent(arguments, heartbeat),
        lock=held,
        restore=lambda: _restore(state_dir),
    )


def _checked_state_dir(arguments: argparse.Namespace) -> tuple[int, Path | None]:
    """Check the configuration in a child, which may grow, and return what the guardian needs."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        code = FAILED
        try:
            code = _tell_state_dir(arguments, writer)
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as answer:
        text = answer.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return (code, Path(text)) if code == DONE else (code if code > 0 else FAILED, None)


def _tell_state_dir(arguments: argparse.Namespace, writer: int) -> int:
    from controller.config.load import ConfigError, load

    try:
        config = load(arguments.config)
    except ConfigError as error:
        tell(error)
        return WRONG
    os.write(writer, os.fsencode(config.state_dir))
    return DONE


def _agent(arguments: argparse.Namespace, heartbeat: object) -> int:
    # Before numpy's library starts threads: a signal that comes during a tick goes to a thread
    # that does not block it, and a reload would be lost there.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    from actuators.journal import JournalError
    from controller.agent.agent import Agent, Options
    from controller.agent.guardian import Heartbeat
    from controller.config.load import ConfigError
    from controller.core.model import Mode
    from controller.host.facts import HostError
    from controller.telemetry.http import HttpError

    assert isinstance(heartbeat, Heartbeat)
    options = Options(
        config=arguments.config,
        mode=None if arguments.mode is None else Mode(arguments.mode),
        once=arguments.once,
        record=arguments.record,
    )
    try:
        agent = Agent(options, heartbeat)
    except (ConfigError, HttpError, HostError, JournalError, OSError) as error:
        # Nothing here gets better by trying again, which is what a guardian would do after 1.
        tell(error)
        return WRONG
    return agent.run()


def _restore(state_dir: Path) -> bool:
    from controller.agent.restore import restore_knobs

    return restore_knobs(state_dir)
