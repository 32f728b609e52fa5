# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint trial``: what enforcing brings on this node, by a randomised trial."""

import argparse
from pathlib import Path

from controller.cli.common import (
    DONE,
    FAILED,
    WRONG,
    add_directories,
    fail,
    find_data_dir,
    find_unwritable,
)

__all__ = ("EXAMPLE", "HELP", "add_arguments", "main")

HELP = "find out what enforcing brings on this node, in blocks of random order"
EXAMPLE = "sweetpoint trial --for 2h"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    for option, default, text in (
        ("--for", "2h", "how long the trial takes"),
        ("--block", "2m", "length of a paused block"),
        ("--washout", "20s", "time at the begin of each block that is not measured"),
    ):
        parser.add_argument(
            option,
            dest=option[2:] + "_ns",
            default=default,
            metavar="TIME",
            help=f"{text} (default: %(default)s)",
        )
    for option, default, text in (
        ("--paused", "50%", "paused part of the time, at most 50%%"),
        (
            "--most-harm",
            "50%",
            "the trial ends when a service is above its sweet point for a part of a block that is "
            "larger by this than with the other arm",
        ),
    ):
        parser.add_argument(
            option, default=default, metavar="SHARE", help=f"{text} (default: %(default)s)"
        )
    compared = parser.add_mutually_exclusive_group()
    compared.add_argument(
        "--policy",
        default="",
        metavar="NAME",
        help="compare enforcing with and without this policy, not with pausing",
    )
    compared.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="compare the configuration with another one: FILE has a name, and what it sets "
        "otherwise, as a policy has; - is the standard input",
    )
    parser.add_argument("--seed", type=int, help="repeats the order of an earlier trial")
    parser.add_argument(
        "--blocks", type=Path, metavar="FILE", help="where pairs are kept (default: in data_dir)"
    )
    _add_other_uses(parser)
    parser.add_argument(
        "--publish",
        action="store_true",
        help="write the last pairs into an annotation of this host's Node, for a rollout",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the result as HTML")
    add_directories(parser)


def _add_other_uses(parser: argparse.ArgumentParser) -> None:
    use = parser.add_mutually_exclusive_group()
    use.add_argument(
        "--read",
        type=Path,
        action="append",
        metavar="FILE",
        help="only say what the pairs of a trial show; again for those of other nodes",
    )
    for option, text in (
        ("--background", "begin the trial and return; it goes on by itself"),
        ("--latest", "only say how the last trial in the background goes on, and what it shows"),
        ("--stop", "only end the trial in the background; its pairs are kept"),
    ):
        use.add_argument(option, action="store_true", help=text)
    parser.add_argument(
        "--label",
        default="",
        metavar="TEXT",
        help="with --background: a text that --latest repeats, by which trials of a pool are "
        "found; with --stop: only a trial with this text is ended",
    )


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code: 0 done, 1 no agent that enforces or ended early, 2 wrong options."""
    from controller.config.yaml_document import ConfigError
    from controller.trial.blocks import TrialError

    if problem := find_unwritable(arguments.report):
        return fail(problem, WRONG)
    if arguments.background and arguments.report is not None:
        return fail("--background has no result to report; --latest has one", WRONG)
    try:
        if arguments.read:
            return _read(arguments)
        if arguments.latest:
            return _latest(arguments)
        if arguments.stop:
            return _stop(arguments)
        from controller.cli.trial_run import run

        return run(arguments)
    except (TrialError, ConfigError) as error:
        return fail(error, WRONG)
    except OSError as error:
        return fail(error, FAILED)


def _read(arguments: argparse.Namespace) -> int:
    from controller.cli.trial_result import tell
    from controller.trial.blocks import load

    results = [load(path) for path in arguments.read]
    if len({(each.design.policy, each.design.candidate) for each in results}) > 1:
        return fail("--read: these trials compared different things", WRONG)
    tell(arguments, results, "")
    return DONE


def _latest(arguments: argparse.Namespace) -> int:
    from controller.cli.trial_background import latest
    from controller.cli.trial_result import tell

    found = latest(find_data_dir(arguments))
    how = found.plain()
    if not arguments.json:
        print("{state}: pair {pairs} of {of}, order {seed}".format(**how))
    tell(arguments, [found.results], found.record.ended or "", {"trial": how})
    return DONE


def _stop(arguments: argparse.Namespace) -> int:
    from controller.cli.trial_background import stop

    ended = stop(find_data_dir(arguments), arguments.label)
    print("ended: the trial in the background" if ended else "no trial runs in the background")
    return DONE
