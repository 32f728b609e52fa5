# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint trial``: what enforcing brings on this node, by a randomised trial."""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
import json
import os
from pathlib import Path
import random
import signal
import sys
import time
from typing import TYPE_CHECKING

from controller.cli.common import (
    DONE,
    FAILED,
    WRONG,
    add_agent,
    fail,
    find_config,
    find_data_dir,
    find_state_dir,
    find_unwritable,
)
from controller.core.units import NS_PER_SEC

if TYPE_CHECKING:
    from controller.cli.top_pages import Page
    from controller.cli.trial_agent import HostAgent
    from controller.cli.trial_publisher import Publisher
    from controller.trial.blocks import Design, Results
    from controller.trial.runner import Clock, Runner

__all__ = ("EXAMPLE", "HELP", "add_arguments", "main")

HELP = "find out what enforcing brings on this node, in blocks of random order"
EXAMPLE = "sweetpoint trial --for 2h"

_HARM_TRIES, _HARM_AGAIN_S = 30, 10.0


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
        "otherwise, as a policy has",
    )
    parser.add_argument("--seed", type=int, help="repeats the order of an earlier trial")
    parser.add_argument(
        "--blocks", type=Path, metavar="FILE", help="where pairs are kept (default: in data_dir)"
    )
    parser.add_argument(
        "--read",
        type=Path,
        action="append",
        metavar="FILE",
        help="only say what the pairs of a trial show; again for those of other nodes",
    )
    parser.add_argument(
        "--publish",
        action="store_true",
        help="write the last pairs into an annotation of this host's Node, for a rollout",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the result as HTML")
    add_agent(parser)


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code: 0 done, 1 no agent that enforces or ended early, 2 wrong options."""
    from controller.config.yaml_document import ConfigError
    from controller.trial.blocks import TrialError, load

    if problem := find_unwritable(arguments.report):
        return fail(problem, WRONG)
    try:
        if arguments.read:
            results = [load(path) for path in arguments.read]
            if len({(each.design.policy, each.design.candidate) for each in results}) > 1:
                return fail("--read: these trials compared different things", WRONG)
            _tell(arguments, results, "")
            return DONE
        return _run(arguments)
    except (TrialError, ConfigError) as error:
        return fail(error, WRONG)
    except OSError as error:
        return fail(error, FAILED)


def _run(arguments: argparse.Namespace) -> int:
    from controller.cli.top_pages import SourceError
    from controller.cli.trial_agent import SystemClock
    from controller.cli.trial_publisher import Publisher
    from controller.cli.trial_text import announcement, progress
    from controller.core.units import count
    from controller.trial.blocks import Arm, append, start
    from controller.trial.runner import HarmError, Runner, TrialEndError

    design, most_harm = _design(arguments)
    config, state_dir = find_config(arguments), find_state_dir(arguments)
    try:
        agent, design = _agent(arguments.against, config, state_dir, design)
        page = agent.first_page()
    except SourceError as error:
        return fail(error, FAILED)
    if (problem := _not_ready(page, design)) is not None:
        return fail(problem, FAILED)
    path, data_dir = _file(arguments), find_data_dir(arguments)
    node = _node(page)
    publisher = Publisher(config, node, design.policy) if arguments.publish else None
    start(path, node, design)
    _say(announcement(design, path, data_dir))
    clock = SystemClock()
    runner = Runner(agent, clock, design, most_harm)
    ended, hurt_s = "", None
    # A terminal that is closed and a service manager end a trial as Ctrl-C does.
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:  # as after nohup
            signal.signal(signum, signal.default_int_handler)
    try:
        for number, pair in enumerate(runner.run(), 1):
            anew = runner.left_out > 0 and len(runner.pairs) == 1
            append(path, pair, anew=anew, changes=runner.comparison.changes)
            _say([progress(pair, number, design)])
            if publisher is not None:
                problem = publisher.publish(runner.pairs, runner.comparison)
                if problem:
                    _say([f"not published, which the next pair makes good: {problem}"])
    except TrialEndError as error:
        ended = str(error)
        if isinstance(error, HarmError) and error.arm is Arm.ENFORCE:
            hurt_s = error.began_s
    except KeyboardInterrupt:
        _tell(arguments, [runner.results(node)], "interrupted")
        raise
    finally:
        _note_left_out(path, runner)
    if runner.lost:
        why = "the agent was started again or configured otherwise meanwhile"
        _say([f"{count(runner.lost, 'pair')} lost, because {why}"])
    try:
        _tell(arguments, [runner.results(node)], ended)
    finally:  # also if the report cannot be written
        if publisher is not None and hurt_s is not None:
            _publish_harm(publisher, runner, hurt_s, clock)
    return FAILED if ended else DONE


def _agent(
    against: Path | None, config: Path, state_dir: Path, design: "Design"
) -> "tuple[HostAgent, Design]":
    """Return the agent that takes what *design* compares, and the design with its candidate.

    :raises ConfigError: the configuration or the file *against* is invalid.
    :raises SourceError: the agent has no pages.
    """
    if against is None:
        from controller.cli.trial_agent import HostAgent

        return HostAgent(config, state_dir, design.policy), design
    from controller.cli.trial_candidate import CandidateAgent, read_candidate_file

    file = read_candidate_file(against, config)
    design = replace(design, policy=file.candidate.name, candidate=file.candidate.digest)
    return CandidateAgent(config, state_dir, file), design


def _note_left_out(path: Path, runner: "Runner") -> None:
    """Note in the file that all of its pairs are left out, if that is so."""
    from controller.trial.blocks import begin_anew

    if runner.pairs or not runner.left_out:
        return
    try:
        begin_anew(path)
    except OSError as error:  # the result is still to be printed
        _say([f"{path}: {error.strerror}, so --read counts the pairs that are left out"])


def _publish_harm(publisher: "Publisher", runner: "Runner", hurt_s: float, clock: "Clock") -> None:
    """Publish that the policy hurt a service, and try for five minutes.

    The pairs until then are too few for a verdict. So without this a rollout would go on.
    """
    for _ in range(_HARM_TRIES):
        problem = publisher.publish(runner.pairs, runner.comparison, hurt_s)
        if not problem:
            return
        _say([f"the harm is not published yet: {problem}"])
        clock.sleep(_HARM_AGAIN_S)
    _say(["the harm was not published: take the policy from this node, or end the rollout"])


def _design(arguments: argparse.Namespace) -> "tuple[Design, float]":
    """Return the design that the options give, and the harm that ends the trial.

    :raises TrialError: an option has no such value.
    """
    from controller.core.units import UnitError, parse_duration, parse_ratio
    from controller.trial.blocks import Design, TrialError

    values = {}
    for name, parse in (
        *((name, parse_duration) for name in ("for_ns", "block_ns", "washout_ns")),
        *((name, parse_ratio) for name in ("paused", "most_harm")),
    ):
        try:
            values[name] = parse(getattr(arguments, name))
        except UnitError as error:
            option = name.removesuffix("_ns").replace("_", "-")
            raise TrialError(f"--{option}: {error}") from None
    seed = random.SystemRandom().randrange(1 << 31) if arguments.seed is None else arguments.seed
    design = Design.of(
        values["for_ns"] / NS_PER_SEC,
        values["block_ns"] / NS_PER_SEC,
        values["washout_ns"] / NS_PER_SEC,
        values["paused"],
        seed,
    )
    return replace(design, policy=arguments.policy), values["most_harm"]


def _not_ready(page: "Page", design: "Design") -> str | None:
    """Return why an agent with *page* cannot be tried by *design*."""
    from controller.host.names import printable
    from controller.trial.comparison import candidate, is_in_force

    mode = page.get("mode")
    if mode != "enforce":
        return f"the agent is in mode {printable(str(mode))}: a trial needs one that enforces"
    if page.get("pauses"):
        return "the agent is paused; 'sweetpoint resume' ends it, and a trial begins with none"
    if candidate(page) is not None:
        return "another trial has a candidate in force; 'sweetpoint resume' ends one that is left"
    if design.policy and not design.candidate and not is_in_force(design.policy, page):
        return f"policy {printable(design.policy)} is not in force on this node"
    return None


def _node(page: "Page") -> str:
    from controller.page.view import mapping, text

    return text(mapping(page.get("cluster")).get("node")) or os.uname().nodename


def _file(arguments: argparse.Namespace) -> Path:
    """Return the file for the pairs, in a directory that exists."""
    if arguments.blocks is not None:
        named: Path = arguments.blocks
        return named
    directory = find_data_dir(arguments) / "trials"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory / f"{time.strftime('%Y-%m-%dT%H%M%SZ', time.gmtime())}.jsonl"


def _say(lines: Iterable[str]) -> None:
    """Print progress, which is not part of the result."""
    for line in lines:
        print(f"sweetpoint: {line}", file=sys.stderr, flush=True)


def _tell(arguments: argparse.Namespace, results: "Sequence[Results]", ended: str) -> None:
    """Print what *results*, one of each node, show; *ended*: why it ended before its time."""
    from controller.cli.trial_text import changed, lines, plain
    from controller.host.names import printable
    from controller.trial.analysis import analyse
    from controller.trial.blocks import changes_of

    nodes = [each.pairs for each in results]
    findings, arms = analyse(nodes), results[0].design.names
    if arguments.json:
        names = [each.node for each in results]
        found = {
            "nodes": names,
            "arms": arms,
            "ended": ended,
            "left_out": sum(each.left_out for each in results),
            "changes": [change._asdict() for change in changes_of(results)],
            "findings": [*map(plain, findings)],
        }
        print(json.dumps(found, indent=2))
    else:
        if ended:
            print(f"ended before its time: {printable(ended)}")
        for each in results:
            if each.note:
                print(printable(f"{each.node}: {each.note}"))
        for line in lines(nodes, findings, arms):
            print(printable(line))
        for change in changes_of(results):
            print(printable(f"  {changed(change, results[0].design.policy)}"))
    if arguments.report is not None:  # last: a disk that is full must not cost the result
        from controller.cli.trial_page import trial_page

        page = trial_page(results, ended)
        arguments.report.write_text(page, encoding="utf-8", errors="backslashreplace")
