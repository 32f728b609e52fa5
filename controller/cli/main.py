# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The command line: parses the arguments and runs the module of the sub-command."""

import argparse
from collections.abc import Mapping, Sequence
import logging
import os
import sys
from typing import Protocol

from controller.cli import (
    advise,
    check,
    demo,
    doctor,
    explain,
    import_koordinator,
    init,
    learn,
    pause,
    release,
    replay,
    resume,
    retire,
    run,
    schema,
    simulate,
    top,
)
from controller.cli.common import FAILED

__all__ = ("COMMANDS", "main", "parser")


class _Command(Protocol):
    """Interface of a sub-command's module."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None: ...

    def main(self, arguments: argparse.Namespace, /) -> int: ...


COMMANDS: Mapping[str, _Command] = {
    "run": run,
    "doctor": doctor,
    "demo": demo,
    "top": top,
    "pause": pause,
    "resume": resume,
    "release": release,
    "retire": retire,
    "init": init,
    "check": check,
    "schema": schema,
    "explain": explain,
    "advise": advise,
    "learn": learn,
    "replay": replay,
    "simulate": simulate,
    "import-koordinator": import_koordinator,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sub-command in *argv* and return its exit code.

    :return: 0 done, 1 failed (also: stdout was closed), 2 wrong use or invalid configuration,
        130 interrupted.
    """
    arguments = parser().parse_args(argv)
    logging.basicConfig(
        level=logging.DEBUG if arguments.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    try:
        return COMMANDS[arguments.command].main(arguments)
    except BrokenPipeError:
        # So that the flush at exit does not fail again (Python documentation, "Note on SIGPIPE").
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        return 130


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top_level = argparse.ArgumentParser(
        prog="sweetpoint",
        description="Lets best-effort work fill a machine without hurting its services.",
        epilog="Start with 'sweetpoint doctor', 'sweetpoint demo', then 'sweetpoint init'.",
    )
    top_level.add_argument("--verbose", action="store_true", help="log at level DEBUG")
    commands = top_level.add_subparsers(required=True, dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        command.add_arguments(commands.add_parser(name, help=command.HELP))
    return top_level


if __name__ == "__main__":
    sys.exit(main())
