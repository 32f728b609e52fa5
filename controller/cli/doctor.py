# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint doctor``: what this host can do."""

import argparse

__all__ = ("HELP", "add_arguments", "main")

HELP = "what this host can do, what not, how to get it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    parser.add_argument("--json", action="store_true", help="machine-readable")


def main(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    from controller.doctor import main as doctor

    return doctor(as_json=arguments.json)
