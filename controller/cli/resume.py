# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint resume``: ends pauses of this host before their time."""

import argparse
from collections.abc import Iterable
import time
from typing import TYPE_CHECKING

from controller.cli.common import DONE, FAILED, WRONG, add_state_dir, fail, find_state_dir
from controller.cli.pause import add_names, describe, names, without_agent
from controller.host.state_dir import owners

if TYPE_CHECKING:
    from controller.host.pause_file import PauseEntry

__all__ = ("EXAMPLE", "HELP", "add_arguments", "main")

HELP = "end pauses; without a name all pauses that were set on this host"
EXAMPLE = "sweetpoint resume --workload encode"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    add_names(parser, service="end the pause of this service", workload="end that of this workload")
    add_state_dir(parser)


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code: 0 done, 1 the file cannot be written, 2 there is no such pause."""
    from controller.host.candidate_file import remove_candidate
    from controller.host.pause_file import PauseError, change_pauses, pause_file, read_pauses

    now_s = time.time()
    state_dir = find_state_dir(arguments)
    removed = list(names(arguments)) if arguments.service or arguments.workload else None
    try:
        try:
            present = read_pauses(state_dir, now_s)
        except PauseError:
            if removed is not None:
                raise
            present = ()  # a damaged file is replaced
        known = {each[:2] for each in present}
        if removed and (missing := [each for each in removed if each not in known]):
            return fail(f"{_named(*missing[0])} is not paused on this host", WRONG)
        exists = pause_file(state_dir).exists()
        left = change_pauses(state_dir, (), removed, now_s) if exists else ()
        tried = removed is None and remove_candidate(state_dir, now_s)
    except PauseError as error:
        return fail(error, WRONG)
    except OSError as error:
        return fail(error, FAILED)
    print(_report(present, left, now_s, tried=tried))
    if not owners(state_dir):
        print(without_agent(state_dir, _later(left)))
    return DONE


def _later(left: "tuple[PauseEntry, ...]") -> str:
    if left:
        return "an agent that starts obeys the pauses that are left"
    return "an agent that starts protects services at once"


def _report(
    before: "Iterable[PauseEntry]", left: "tuple[PauseEntry, ...]", now_s: float, *, tried: bool
) -> str:
    """Return what ended, and what is still paused; *tried*: the candidate of a trial ended."""
    kept = {each[:2] for each in left}
    ended = [each for each in before if each[:2] not in kept and each.until_s > now_s]
    lines = ["ended: the candidate of a trial"] if tried else []
    lines += [f"resumed: {_named(each.scope, each.name)}" for each in ended]
    if left:
        lines.append(describe(left))
    return "\n".join(lines or ["nothing was paused"])


def _named(scope: str, name: str) -> str:
    return f"{scope} {ascii(name)[1:-1]}".rstrip()
