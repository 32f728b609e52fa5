# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint pause``: has the agent of this host give back knobs for a while."""

import argparse
from collections.abc import Iterator
import contextlib
from pathlib import Path
import time
from typing import TYPE_CHECKING

from controller.cli.common import (
    DONE,
    FAILED,
    WRONG,
    add_state_dir,
    clock,
    fail,
    find_state_dir,
)
from controller.host.state_dir import JOURNAL, owners, release_command

if TYPE_CHECKING:
    from controller.host.pause_file import PauseEntry

__all__ = (
    "EXAMPLE",
    "HELP",
    "add_arguments",
    "add_names",
    "describe",
    "main",
    "names",
    "without_agent",
)

HELP = "give back knobs for a while, and go on measuring"
EXAMPLE = "sweetpoint pause --for 2h --workload encode"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    parser.add_argument(
        "--for",
        dest="end",
        default="30m",
        metavar="TIME",
        help="how long, such as 30m or 4h, or the end as 2030-01-31T18:00:00Z; at most seven days "
        "(default: %(default)s)",
    )
    add_names(
        parser,
        service="only this service, which is not protected then",
        workload="only this best-effort workload, which is not touched then",
    )
    add_state_dir(parser)


def add_names(parser: argparse.ArgumentParser, *, service: str, workload: str) -> None:
    """Add the options that name services and workloads to *parser*, with their meanings."""
    for option, text in (("--service", service), ("--workload", workload)):
        parser.add_argument(
            option,
            action="append",
            default=[],
            metavar="NAME",
            help=f"{text} (may be given again)",
        )


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code: 0 done, 1 the file cannot be written, 2 not a duration or a name."""
    from controller.cli.known_names import unknown_name
    from controller.host.pause_file import PauseEntry, PauseError, change_pauses, parse_end

    now_s = time.time()
    state_dir = find_state_dir(arguments)
    try:
        until_s = parse_end(arguments.end, now_s)
        if until_s <= now_s:
            return fail(f"--for: {arguments.end!a} has passed", WRONG)
        runs = bool(owners(state_dir))
        if runs and (unknown := unknown_name(arguments.config, state_dir, names(arguments))):
            return fail(unknown, WRONG)
        added = [PauseEntry(scope, name, until_s) for scope, name in names(arguments)]
        entries = change_pauses(state_dir, added, (), now_s)
    except PauseError as error:
        return fail(error, WRONG)
    except OSError as error:
        return fail(error, FAILED)
    print(describe(entries))
    if not runs:
        print(without_agent(state_dir, "an agent that starts before the end obeys the pause"))
    return DONE


def names(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield (scope, name) of what the options name; everything without any."""
    from controller.host.pause_file import EVERYTHING, SERVICE, WORKLOAD

    if not arguments.service and not arguments.workload:
        yield EVERYTHING, ""
    for name in arguments.service:
        yield SERVICE, name
    for name in arguments.workload:
        yield WORKLOAD, name


def without_agent(state_dir: Path, later: str) -> str:
    """Return that no agent with *state_dir* does anything now, what happens *later*, what to do."""
    from actuators.journal_view import view_journal
    from controller.core.units import count

    text = f"no agent runs with {state_dir}, so nothing changes now; {later}"
    with contextlib.suppress(OSError):
        if held := len(view_journal(state_dir / JOURNAL).records):
            command = release_command(state_dir)
            text += f"\n{count(held, 'knob')} still held: '{command}' gives back what is left"
    return text


def describe(entries: "tuple[PauseEntry, ...]") -> str:
    """Return the pauses of this host as text, one in a line."""
    lines = []
    for scope, name, until_s in entries:
        what = ascii(name)[1:-1]
        with contextlib.suppress(ValueError, OverflowError):
            end = clock(until_s * 1e9)
            lines.append(f"paused until {end}: {scope} {what}".rstrip())
    return "\n".join(lines) or "nothing is paused"
