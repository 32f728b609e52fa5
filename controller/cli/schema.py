# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint schema``: prints JSON schemas, for editors and other programs."""

import argparse
import json

from controller.cli.common import DONE

__all__ = ("EXAMPLE", "HELP", "add_arguments", "main")

HELP = "print the JSON schema of a configuration or a profile"
EXAMPLE = "sweetpoint schema config"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    parser.add_argument("kind", choices=("config", "profile"))


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code, which is always 0."""
    from controller.config.load import json_schemas

    print(json.dumps(json_schemas()[arguments.kind], indent=2))
    return DONE
