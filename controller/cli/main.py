# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The command line: parses the arguments and runs the module of the sub-command."""

import argparse
from collections.abc import Iterable, Sequence
from importlib import import_module
import logging
import os
import sys
from typing import Protocol, cast

from controller.cli.common import FAILED
from controller.host.names import printable

__all__ = ("COMMANDS", "command", "main", "parser")


class _Command(Protocol):
    """Interface of a sub-command's module."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None: ...

    def main(self, arguments: argparse.Namespace, /) -> int: ...


COMMANDS = (
    "run",
    "doctor",
    "demo",
    "top",
    "pause",
    "resume",
    "release",
    "retire",
    "init",
    "check",
    "schema",
    "explain",
    "advise",
    "learn",
    "replay",
    "simulate",
    "import-koordinator",
)


class _Version(argparse.Action):
    """Prints the version of the installed package; only then the package's metadata are read."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"{parser.prog} {version('sweetpoint')}")
        parser.exit()


def command(name: str) -> _Command:
    """Import the module of a sub-command and return it."""
    return cast(_Command, import_module(f"controller.cli.{name.replace('-', '_')}"))


class _Formatter(logging.Formatter):
    """Shows names in messages as text: that of a cgroup may have sequences for the terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().formatMessage(record).split("\n")))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sub-command in *argv* and return its exit code.

    :return: 0 done, 1 failed (also: stdout was closed), 2 wrong use or invalid configuration,
        130 interrupted.
    """
    argv = sys.argv[1:] if argv is None else argv
    # Only the module of the sub-command is imported: the guardian keeps in memory what is.
    first = next((each for each in argv if not each.startswith("-")), "")
    arguments = parser([first] if first in COMMANDS else COMMANDS).parse_args(argv)
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(message)s"))
    level = logging.DEBUG if arguments.verbose else logging.INFO
    logging.basicConfig(level=level, handlers=[handler])
    try:
        return command(arguments.command).main(arguments)
    except BrokenPipeError:
        # So that the flush at exit does not fail again (Python documentation, "Note on SIGPIPE").
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        return 130


def parser(names: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of the command line with the sub-commands *names*."""
    top_level = argparse.ArgumentParser(
        prog="sweetpoint",
        description="Lets best-effort work fill a machine without hurting its services.",
        epilog="Start with 'sweetpoint doctor', 'sweetpoint demo', then 'sweetpoint init'.",
    )
    top_level.add_argument("--verbose", action="store_true", help="log at level DEBUG")
    top_level.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = top_level.add_subparsers(required=True, dest="command", metavar="COMMAND")
    for name in names:
        module = command(name)
        module.add_arguments(commands.add_parser(name, help=module.HELP))
    return top_level


if __name__ == "__main__":
    sys.exit(main())
