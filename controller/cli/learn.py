# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint learn``: observes services and prints profiles with their sweet points."""

import argparse
import os
from pathlib import Path
import sys

from controller.cli.common import DONE, FAILED, WRONG, add_agent, fail, find_config, find_unwritable

__all__ = ("EXAMPLE", "HELP", "add_arguments", "main")

HELP = "observe services and print a profile with learned sweet points"
EXAMPLE = "sweetpoint learn web --for 10m --write web.yaml"

_FOR = "10m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    add_agent(parser)
    parser.add_argument(
        "--for",
        dest="duration",
        default=_FOR,
        metavar="DURATION",
        help="how long to observe (default: %(default)s); Ctrl-C ends it with what is known",
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="write the profile to a new file, not to stdout"
    )
    parser.add_argument("services", nargs="+", metavar="SERVICE")


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code: 0 done, 1 a service has no profile, 2 wrong use or configuration."""
    from controller.agent.learned_profile import find_obstacle, profile_text
    from controller.agent.observation import observe
    from controller.config.load import ConfigError, load
    from controller.core.model import QosClass
    from controller.core.units import NS_PER_SEC, UnitError, parse_duration
    from controller.host.facts import HostError, cpu_model

    services = list(dict.fromkeys(arguments.services))
    try:
        seconds = parse_duration(arguments.duration) / NS_PER_SEC
        config = load(find_config(arguments))
    except (ConfigError, UnitError, OSError) as error:
        return fail(error, WRONG)
    known = {rule.service for rule in config.workloads if rule.qos is QosClass.LS}
    if missing := [each for each in services if each not in known]:
        have = ", ".join(sorted(known)) or "none"
        return fail(f"no service of the configuration: {', '.join(missing)} (have: {have})", WRONG)
    if arguments.write is not None and len(services) > 1:
        return fail("--write takes one service, because a file has one profile", WRONG)
    if arguments.write is not None and arguments.write.exists():
        return fail(f"{arguments.write} exists", WRONG)
    if problem := find_unwritable(arguments.write):
        return fail(problem, WRONG)
    if os.geteuid() != 0:
        return fail("learn needs root, to measure: run it with sudo", FAILED)
    try:
        observations = observe(config, services, seconds, _tell)
    except (ConfigError, HostError) as error:
        return fail(error, WRONG)
    failed = printed = False
    for each in observations:
        if obstacle := find_obstacle(each):
            print(f"sweetpoint: {each.service}: no profile: {obstacle}", file=sys.stderr)
            failed = True
            continue
        text = profile_text(each, cpu_model())
        if arguments.write is None:
            # Documents of one stream: without a line between them it would be invalid YAML.
            print(f"---\n{text}" if printed else text, end="")
            printed = True
            continue
        try:
            with arguments.write.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            return fail(error, FAILED)
    return FAILED if failed else DONE


def _tell(left_s: float) -> None:
    if sys.stderr.isatty():
        # In place: each tick writes over the last one.
        print(f"\robserving, {left_s:.0f} s left (Ctrl-C ends it) ", end="", file=sys.stderr)
