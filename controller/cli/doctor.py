# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint doctor``: reports the capabilities of this host."""

import argparse

__all__ = ("EXAMPLE", "HELP", "add_arguments", "main")

HELP = "report what this host supports, what is missing and how to get it"
EXAMPLE = "sweetpoint doctor"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code, which is always 0."""
    from controller.doctor import main as doctor

    return doctor(as_json=arguments.json)
