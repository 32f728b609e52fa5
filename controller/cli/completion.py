# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint completion``: prints a script with which a shell completes the command line."""

import argparse
from pathlib import Path

from controller.cli.common import DONE

__all__ = ("EXAMPLE", "HELP", "add_arguments", "main")

HELP = "print the script with which a shell completes commands, options and files"
EXAMPLE = "sweetpoint completion bash"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code, which is always 0."""
    import shtab

    from controller.cli.main import parser

    # Static scripts: a completion starts no Python.
    whole = parser()
    _mark_files(whole, shtab.FILE, shtab.DIRECTORY)
    print(shtab.complete(whole, arguments.shell))
    return DONE


def _mark_files(parser: argparse.ArgumentParser, file: object, directory: object) -> None:
    """Tell shtab which values are files or directories, also those of sub-commands."""
    for action in parser._actions:
        if action.type is Path:
            is_directory = action.dest.endswith("_dir") or action.metavar == "DIR"
            vars(action)["complete"] = directory if is_directory else file
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                _mark_files(each, file, directory)
