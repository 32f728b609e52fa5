# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint demo``: a service and batch work side by side, with and without sweetpoint."""

import argparse
from pathlib import Path
import sys
from typing import TextIO

from controller.cli.common import whole_number

__all__ = ("EXAMPLE", "HELP", "add_arguments", "main")

HELP = "run a service and batch work: alone, unmanaged and managed"
EXAMPLE = "sweetpoint demo --seconds 10 --rounds 3"
MIN_SECONDS = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    parser.add_argument(
        "--be",
        choices=("both", "ffmpeg", "stress-ng"),
        default="both",
        help="best-effort job: a video encoding, a stress test, or first one then the other "
        "(default)",
    )
    parser.add_argument("--seconds", type=_seconds, default=12.0, help="length of a phase")
    parser.add_argument(
        "--rounds",
        type=whole_number,
        default=3,
        help="repeat all phases, interleaved; nothing follows from one round alone",
    )
    parser.add_argument("--rate", type=float, default=1500.0, help="requests per second")
    parser.add_argument(
        "--loop",
        action="store_true",
        help="also show the quota loop alone: sched-idle off, sweet point 2 ms, 8 ms, 2 ms",
    )
    parser.add_argument("--loop-seconds", type=_seconds, default=40.0, help="for each of the three")
    parser.add_argument(
        "--no-memory",
        action="store_true",
        help="leave out the phase in which batch work takes all memory of a small cgroup",
    )
    parser.add_argument("--simulate", action="store_true", help="use the simulated node")
    parser.add_argument("--report", type=Path, help="HTML file (default: in ./reports)")
    parser.add_argument("--json", type=Path, help="write the raw numbers to this file")


def main(args: argparse.Namespace, out: TextIO | None = None) -> int:
    """Return the exit code: 0 done, 1 failed, 128 + signal if interrupted by it."""
    from controller.demo.show import show

    return show(args, out or sys.stdout)


def _seconds(text: str) -> float:
    value = float(text) if text.isascii() and text.replace(".", "", 1).isdigit() else 0.0
    if value < MIN_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of {MIN_SECONDS:g} or more")
    return value
