# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The command line: parses the arguments and runs the module of the sub-command."""

import argparse
from collections.abc import Iterable, Sequence
import contextlib
from importlib import import_module
import logging
import os
import re
import sys
import textwrap
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TextIO, cast

from controller.cli.common import FAILED, WRONG, WrongAgentError, discard, fail
from controller.cli.log_format import FORMATTERS, TEXT
from controller.host.names import did_you_mean
from controller.host.os_errors import reason

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ("COMMANDS", "command", "main", "parser")


class _Command(Protocol):
    """Interface of a sub-command's module."""

    # What it is for: a clause that begins with a verb.
    HELP: str
    # A whole command line.
    EXAMPLE: str

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None: ...

    def main(self, arguments: argparse.Namespace, /) -> int: ...


COMMANDS = (
    "run",
    "doctor",
    "demo",
    "status",
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
    "trial",
    "rollout",
    "learn",
    "replay",
    "simulate",
    "import-koordinator",
    "completion",
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


class _OutputError(Exception):
    """stdout cannot be written, because of the error ``cause``."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause)
        self.cause = cause


class _Output:
    """stdout, whose failures no sub-command takes for those of a file that it reads or writes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            raise _OutputError(error) from None

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise _OutputError(error) from None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sub-command in *argv* and return its exit code.

    :return: 0 done, 1 failed (also: stdout was closed, or its device is full), 2 wrong use or
        invalid configuration, 130 interrupted.
    """
    _open_closed_streams()
    stdout = sys.stdout
    try:
        with contextlib.redirect_stdout(cast(TextIO, _Output(stdout))):
            try:
                return _run(sys.argv[1:] if argv is None else argv)
            finally:
                # Here, because at exit an error would be a traceback.
                sys.stdout.flush()
    except _OutputError as failure:
        discard(stdout)
        if isinstance(failure.cause, BrokenPipeError):
            return FAILED  # the reader has seen what it wanted, as with "| head"
        return fail(f"the output cannot be written: {reason(failure.cause)}", FAILED)
    except OSError as error:
        return fail(error, FAILED)
    except WrongAgentError as error:
        return fail(error, WRONG)
    except KeyboardInterrupt:
        return 130


def _run(argv: Sequence[str]) -> int:
    # Only the module of the sub-command is imported: the guardian keeps in memory what is.
    first = next(filter(str, _globals().parse_known_args(argv)[1]), "")
    if first and not first.startswith("-") and first not in COMMANDS:
        hint = did_you_mean(first, COMMANDS) or f"known: {', '.join(COMMANDS)}"
        return fail(f"there is no command {first!a}; {hint}", WRONG)
    arguments = parser([first] if first in COMMANDS else COMMANDS).parse_args(argv)
    handler = logging.StreamHandler()
    handler.setFormatter(FORMATTERS[arguments.log_format]())
    level = logging.DEBUG if arguments.verbose else logging.INFO
    logging.basicConfig(level=level, handlers=[handler])
    return command(arguments.command).main(arguments)


def _open_closed_streams() -> None:
    """Open stdin, stdout or stderr that the caller closed: another file would get its place."""
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, which says what to do."""

    is_strict = False

    def error(self, message: str) -> NoReturn:
        self.exit(fail(f"{message}; see '{self.prog} --help'", WRONG))

    def print_help(self, file: "SupportsWrite[str] | None" = None) -> None:
        print(self.format_help(), end="", file=file)  # argparse itself would ignore its failure

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, but with ``is_strict`` nothing may be unknown.

        argparse itself complains in the name of the parser above, with all unknown arguments.
        """
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and self.is_strict:
            options = re.findall(r"--[a-z][a-z-]*", self.format_help())
            hint = did_you_mean(unknown[0].partition("=")[0], {*options})
            self.error(f"unknown argument {unknown[0]!a}{hint and f'; {hint}'}")
        return found, unknown


def _globals() -> argparse.ArgumentParser:
    """Return the parser of the options that come before the sub-command."""
    options = _Parser(prog="sweetpoint", add_help=False)
    options.add_argument("--verbose", action="store_true", help="log at level DEBUG")
    options.add_argument(
        "--log-format",
        choices=tuple(FORMATTERS),
        default=TEXT,
        help="lines of the log: text, or JSON with time, level, logger and message "
        "(default: %(default)s)",
    )
    options.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    return options


def parser(names: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """Return the parser of the command line with the sub-commands *names*."""
    top_level = _Parser(
        prog="sweetpoint",
        parents=[_globals()],
        description="Lets best-effort work fill a machine without hurting its services.",
        epilog="Start with 'sweetpoint doctor', 'sweetpoint demo', then 'sweetpoint init'.",
    )
    commands = top_level.add_subparsers(required=True, dest="command", metavar="COMMAND")
    for name in names:
        module = command(name)
        added = commands.add_parser(
            name,
            help=module.HELP,
            description=f"{module.HELP[0].upper()}{module.HELP[1:]}.",
            epilog=f"example:\n  {module.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.is_strict = True
        module.add_arguments(added)
        added.description = textwrap.fill(str(added.description), 79)
    return top_level


if __name__ == "__main__":
    sys.exit(main())
