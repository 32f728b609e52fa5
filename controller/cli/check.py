# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint check``: validates a configuration before it is used."""

import argparse
from dataclasses import asdict
import json
from typing import TYPE_CHECKING

from controller.cli.common import (
    DONE,
    FAILED,
    WRONG,
    add_agent,
    fail,
    find_config,
    node_labels,
    wall_time_s,
)

if TYPE_CHECKING:
    from controller.config.sections.service_sources import ServiceLevelConfig

__all__ = ("EXAMPLE", "HELP", "add_arguments", "main")

HELP = "check a configuration and say what it means on this host"
EXAMPLE = "sweetpoint check --config new.yaml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    add_agent(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--resolved",
        action="store_true",
        help="print the configuration as YAML with all defaults, each key with its meaning",
    )
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument(
        "--ask",
        action="store_true",
        help="instead of printing, read every source of a service level once",
    )
    parser.add_argument(
        "--node-labels",
        type=node_labels,
        metavar="KEY=VALUE,...",
        help="labels of a node: policies that select by labels are those of such a node",
    )
    parser.add_argument(
        "--at",
        type=wall_time_s,
        metavar="TIME",
        help="policies are those in force at this time, such as 2026-11-27T08:00+01:00 "
        "(default: now)",
    )


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code: 0 valid, 1 a source gave no value (--ask), 2 invalid."""
    from controller.config.explained import explain_document
    from controller.config.models import ConfigModel
    from controller.config.resolve import resolve
    from controller.config.yaml_document import ConfigError

    try:
        config, data = resolve(find_config(arguments), arguments.node_labels, arguments.at)
    except ConfigError as error:
        return fail(error, WRONG)
    for text in config.warnings:
        fail(f"warning: {text}", DONE)
    if arguments.ask:
        return _print_figures(config.service_level)
    if arguments.resolved:
        print(explain_document(ConfigModel, data), end="")
        return DONE
    from controller.cli.summary import render, summarize

    summary = summarize(config)
    print(json.dumps(asdict(summary), indent=2) if arguments.json else render(summary))
    return DONE


def _print_figures(config: "ServiceLevelConfig | None") -> int:
    from controller.probes.service_level.poll import fetch_all

    failed = False
    for source, answer in fetch_all(() if config is None else config.sources):
        failed |= isinstance(answer, Exception)
        print(f"{source.service}: {answer}")
    for profile in () if config is None else config.pods:
        print(f"pods with profile {profile}: asked by the agent of their node only")
    return FAILED if failed else DONE
