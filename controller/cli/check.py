# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint check``: a configuration before it is used."""

import argparse
from typing import TYPE_CHECKING

from controller.cli.common import DONE, FAILED, WRONG, add_config, tell

if TYPE_CHECKING:
    from controller.config.sections.service_level import ServiceLevelConfig

__all__ = ("HELP", "add_arguments", "main")

HELP = "check a configuration and show it resolved"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    add_config(parser)
    parser.add_argument(
        "--ask", action="store_true", help="ask every source of a service level once instead"
    )


def main(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code: 0 right, 1 no answer, 2 wrong."""
    from pydantic import TypeAdapter

    from controller.config.load import Config, ConfigError, load

    try:
        config = load(arguments.config)
    except ConfigError as error:
        tell(error)
        return WRONG
    if arguments.ask:
        return _ask(config.service_level)
    print(TypeAdapter(Config).dump_json(config, indent=2).decode())
    return DONE


def _ask(config: "ServiceLevelConfig | None") -> int:
    from controller.probes.service_level.poll import fetch_all

    failed = False
    for source, answer in fetch_all(() if config is None else config.sources):
        failed |= isinstance(answer, Exception)
        print(f"{source.service}: {answer}")
    return FAILED if failed else DONE
