# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Shared by the sub-commands: exit codes, error messages and the option --config."""

import argparse
from pathlib import Path
import sys

__all__ = ("DONE", "FAILED", "WRONG", "add_config", "add_state_dir", "fail")

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


def fail(error: object, code: int) -> int:
    """Print *error* to stderr and return *code*, the exit code of the command."""
    print(f"sweetpoint: {error}", file=sys.stderr)
    return code
