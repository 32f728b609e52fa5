# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint replay``: the plans of a recording, made again."""

import argparse
from pathlib import Path

from controller.cli.common import DONE, FAILED, WRONG, tell

__all__ = ("HELP", "add_arguments", "main")

HELP = "plan a recording again, with the same or with other settings"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    parser.add_argument("recording", type=Path)
    parser.add_argument(
        "--config", type=Path, help="settings and profiles to use in place of the recorded ones"
    )


def main(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code: 0 the same plans, 1 others, 2 wrong settings."""
    from controller.agent.recording import RecordingError, read, replay
    from controller.config.load import ConfigError, load

    try:
        settings = None if arguments.config is None else load(arguments.config).settings
        ticks = different = 0
        for entry, plan in replay(read(arguments.recording), settings):
            ticks += 1
            different += plan != entry.plan
            for verdict in plan.verdicts:
                print(f"{plan.time_ns / 1e9:.3f} {verdict.subject}: {verdict.text}")
    except ConfigError as error:
        tell(error)
        return WRONG
    except (RecordingError, OSError) as error:
        tell(error)
        return FAILED
    print(f"{ticks} ticks, {different} plans differ from the recorded ones")
    return FAILED if different and settings is None else DONE
