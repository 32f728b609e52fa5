# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint run``: starts the guardian, which runs the agent in a child process."""

import argparse
import contextlib
import gc
import os
from pathlib import Path
import signal
import sys
from typing import TYPE_CHECKING

from controller.cli.common import DONE, FAILED, FIRST_CONFIG, WRONG, add_config, fail

if TYPE_CHECKING:
    from controller.agent.guardian import Heartbeat
    from controller.host.state_dir import Lock

__all__ = ("EXAMPLE", "HELP", "add_arguments", "main")

HELP = "run the agent: measure, plan and, in enforce mode, act"
EXAMPLE = "sweetpoint run --mode observe --config /etc/sweetpoint/config.yaml"
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
        return fail("run needs root: run it with sudo; 'sweetpoint doctor' lists why", FAILED)
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

    code, found = _prepare(arguments.config)
    if found is None:
        return code
    state_dir, memory = found
    try:
        lock = Lock(state_dir)
    except LockError as error:
        return fail(error, FAILED)
    if arguments.no_guardian:
        _restore(state_dir)
        code = _agent(arguments, guardian.Heartbeat(), lock)
    else:
        code = guardian.run(
            lambda heartbeat: _agent(arguments, heartbeat, lock),
            lock=lock,
            restore=lambda: _restore(state_dir),
            memory=memory,
        )
    if code in (DONE, WRONG):
        from controller.host.kept_config import forget_config

        forget_config(state_dir)
    return code


def _prepare(config: Path) -> tuple[int, tuple[Path, Path | None] | None]:
    """Move this process into the agent's own cgroup, find the state directory and memory cgroup.

    In a child, so that what these need does not stay in the guardian's memory. Returns (exit code,
    what it found), which is ``None`` if *config* cannot be read. The agent checks the rest.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        code = FAILED
        try:
            _enter_own_cgroup()  # before the imports that take CPU time
            code = _send_state_dir(config, writer)
            if code == DONE:
                _send_memory_cgroup(writer)
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as answer:
        text = answer.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != DONE:
        return (code if code > 0 else FAILED), None
    state_dir, memory = text.split("\0")
    return code, (Path(state_dir), Path(memory) if memory else None)


def _enter_own_cgroup() -> None:
    from controller.host.own_cgroup import enter_own_cgroup

    enter_own_cgroup((os.getppid(), os.getpid()))


def _send_state_dir(config: Path, writer: int) -> int:
    from controller.config.state_dir import DEFAULT_STATE_DIR, read_state_dir
    from controller.config.yaml_document import ConfigError

    try:
        state_dir = read_state_dir(config) or _load_state_dir(config)
    except ConfigError as error:
        state_dir = Path(DEFAULT_STATE_DIR)
        if not _is_kept(state_dir, config):
            return fail(error if config.exists() else f"{error}; {FIRST_CONFIG}", WRONG)
    except OSError as error:
        return fail(error, FAILED)
    os.write(writer, os.fsencode(state_dir))
    return DONE


def _send_memory_cgroup(writer: int) -> None:
    from controller.host.oom import find_memory_cgroup

    found = find_memory_cgroup(os.getppid(), os.environ.get("POD_UID"))
    os.write(writer, b"\0" + (b"" if found is None else os.fsencode(found)))


def _is_kept(state_dir: Path, config: Path) -> bool:
    # After a crash: the agent says what is wrong with the file, and goes on.
    from controller.host.kept_config import read_config

    try:
        return read_config(state_dir, config) is not None
    except (OSError, ValueError):
        return False


def _load_state_dir(config: Path) -> Path:
    # Names what is wrong with it.
    from controller.config.load import load

    return load(config).state_dir


def _agent(arguments: argparse.Namespace, heartbeat: "Heartbeat", lock: "Lock") -> int:
    # Before there are threads, which inherit the mask. A signal during a tick would otherwise be
    # delivered to a thread that does not block it, and a reload would be lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    # numpy's library would start a thread for each CPU, for products of matrices, which the agent
    # does not compute.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    from controller.host.malloc import keep_heap_small

    keep_heap_small()
    # The collector would search what the imports make for garbage ten times, and find 0.2 MiB.
    # The agent's loop enables it.
    gc.disable()
    from actuators.journal import JournalError
    from controller.agent.agent import Agent, Options
    from controller.config.load import ConfigError
    from controller.core.model import Mode
    from controller.host.facts import HostError

    options = Options(
        config=arguments.config,
        mode=None if arguments.mode is None else Mode(arguments.mode),
        once=arguments.once,
        record=arguments.record,
        lock=lock,
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
    from controller.host.state_dir import has_records

    if not has_records(state_dir):
        return True
    from controller.agent.restore import restore_knobs

    return restore_knobs(state_dir)
