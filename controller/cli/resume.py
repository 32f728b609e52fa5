# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint resume``: ends pauses of this host before their time."""

import argparse
import time

from controller.cli.common import (
    DONE,
    FAILED,
    WRONG,
    WrongDirectoryError,
    add_state_dir,
    fail,
    find_state_dir,
)
from controller.cli.pause import add_names, describe, names

__all__ = ("HELP", "add_arguments", "main")

HELP = "end pauses; without a name all pauses that were set on this host"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    add_names(parser, service="end the pause of this service", workload="end that of this workload")
    add_state_dir(parser)


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code: 0 done, 1 the file cannot be written, 2 there is no such pause."""
    from controller.host.pause_file import PauseError, change_pauses, pause_file, read_pauses

    now_s = time.time()
    try:
        state_dir = find_state_dir(arguments)
    except WrongDirectoryError as error:
        return fail(error, WRONG)
    named = arguments.service or arguments.workload
    removed = list(names(arguments)) if named else None
    try:
        present = {each[:2] for each in read_pauses(state_dir, now_s)} if named else set()
        if removed and (
            missing := [name for scope, name in removed if (scope, name) not in present]
        ):
            return fail(f"not paused on this host: {missing[0]!a}", WRONG)
        if not pause_file(state_dir).exists():
            print(describe(()))
            return DONE
        print(describe(change_pauses(state_dir, (), removed, now_s)))
    except PauseError as error:
        return fail(error, WRONG)
    except OSError as error:
        return fail(f"{state_dir}: {error.strerror}; run as root", FAILED)
    return DONE
