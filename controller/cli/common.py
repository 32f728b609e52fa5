# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What sub-commands share: exit codes, how an error is told, where the configuration is."""

import argparse
from pathlib import Path
import sys

__all__ = ("DONE", "FAILED", "WRONG", "add_config", "tell")

DONE, FAILED, WRONG = 0, 1, 2
_CONFIG = Path("/etc/sweetpoint/config.yaml")


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the option for the configuration file to *parser*."""
    parser.add_argument(
        "--config", type=Path, default=_CONFIG, help="configuration file (default: %(default)s)"
    )


def tell(error: object) -> None:
    """Print one error for the user."""
    print(f"sweetpoint: {error}", file=sys.stderr)
