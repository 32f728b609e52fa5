# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Shared by the sub-commands: exit codes, error messages and the option --config."""

import argparse
import os
from pathlib import Path
import sys

__all__ = (
    "DONE",
    "FAILED",
    "WRONG",
    "add_config",
    "add_state_dir",
    "fail",
    "find_unwritable",
    "whole_number",
)

# Exit codes: success, failure, wrong use or invalid configuration.
DONE, FAILED, WRONG = 0, 1, 2
_CONFIG = Path("/etc/sweetpoint/config.yaml")
_STATE_DIR = Path("/run/sweetpoint")


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the option for the configuration file to *parser*."""
    parser.add_argument(
        "--config", type=Path, default=_CONFIG, help="configuration file (default: %(default)s)"
    )


def add_state_dir(parser: argparse.ArgumentParser) -> None:
    """Add the option for the state directory of the agent to *parser*."""
    parser.add_argument(
        "--state-dir",
        type=Path,
        default=_STATE_DIR,
        help="state directory of the agent (default: %(default)s)",
    )


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
