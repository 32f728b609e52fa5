# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Shared by the sub-commands: exit codes, error messages, and how an agent is named."""

import argparse
import os
from pathlib import Path
import sys

__all__ = (
    "DONE",
    "FAILED",
    "WRONG",
    "WrongDirectoryError",
    "add_config",
    "add_state_dir",
    "fail",
    "find_state_dir",
    "find_unwritable",
    "whole_number",
)

# Exit codes: success, failure, wrong use or invalid configuration.
DONE, FAILED, WRONG = 0, 1, 2
_CONFIG = Path("/etc/sweetpoint/config.yaml")
_OTHERWISE = "the state directory can be named with --state-dir instead"


class WrongDirectoryError(Exception):
    """No state directory is found; the message says why."""


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the option for the configuration file to *parser*."""
    parser.add_argument(
        "--config", type=Path, default=_CONFIG, help="configuration file (default: %(default)s)"
    )


def add_state_dir(parser: argparse.ArgumentParser) -> None:
    """Add the options that name an agent by its state directory to *parser*."""
    add_config(parser)
    parser.add_argument(
        "--state-dir",
        type=Path,
        help="state directory of the agent (default: that of the configuration)",
    )


def find_state_dir(arguments: argparse.Namespace) -> Path:
    """Return the state directory that the options name.

    Without a configuration in the usual place it is the usual directory. One that --state-dir
    names must exist, because what is done in a mistyped one reaches no agent.

    :raises WrongDirectoryError: it does not, or the configuration cannot be used.
    """
    from controller.config.state_dir import DEFAULT_STATE_DIR, read_state_dir
    from controller.config.yaml_document import ConfigError

    named: Path | None = arguments.state_dir
    if named is not None:
        if not named.is_dir():
            raise WrongDirectoryError(f"--state-dir {named}: there is no such directory")
        return named
    if arguments.config == _CONFIG and not _CONFIG.exists():
        return Path(DEFAULT_STATE_DIR)
    try:
        found = read_state_dir(arguments.config)
    except (ConfigError, OSError) as error:
        raise WrongDirectoryError(f"{error}\n{_OTHERWISE}") from None
    if found is None:
        raise WrongDirectoryError(
            f"{arguments.config}: state_dir is not an absolute path\n{_OTHERWISE}"
        )
    return found


def whole_number(text: str) -> int:
    """Return the number in *text*, from 1 on, for an option.

    :raises argparse.ArgumentTypeError: it is none.
    """
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return number


def find_unwritable(path: Path | None) -> str:
    """Return why the file *path* cannot be made, found before long work; empty if it can."""
    if path is None or os.access(path if path.exists() else path.parent, os.W_OK):
        return ""
    if path.exists() or path.parent.is_dir():
        return f"{path} cannot be written"
    return f"{path.parent} is no directory"


def fail(error: object, code: int) -> int:
    """Print *error* to stderr and return *code*, the exit code of the command."""
    print(f"sweetpoint: {error}", file=sys.stderr)
    return code
