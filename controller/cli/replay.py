# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint replay``: computes the plans of a recording again."""

import argparse
from pathlib import Path

from controller.cli.common import DONE, FAILED, WRONG, fail

__all__ = ("HELP", "add_arguments", "main")

HELP = "compute the plans of a recording again, with the same or other settings"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    parser.add_argument("recording", type=Path)
    parser.add_argument(
        "--config", type=Path, help="settings and profiles that replace the recorded ones"
    )


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code: 0 done, 1 plans differ or a bad recording, 2 invalid configuration.

    With other settings (--config) different plans are no failure.
    """
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
        return fail(error, WRONG)
    except (RecordingError, OSError) as error:
        return fail(error, FAILED)
    print(f"{ticks} ticks, {different} plans differ from the recorded ones")
    return FAILED if different and settings is None else DONE
