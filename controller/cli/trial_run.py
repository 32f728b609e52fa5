# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the trial of ``sweetpoint trial``: what is checked first, and what is kept of it."""

import argparse
from dataclasses import replace
import json
import os
from pathlib import Path
import random
import signal
import sys
import time
from typing import NamedTuple

from controller.cli.common import (
    DONE,
    FAILED,
    fail,
    find_config,
    find_data_dir,
    find_state_dir,
)
from controller.cli.top_pages import Page, SourceError
from controller.cli.trial_agent import HostAgent, SystemClock
from controller.cli.trial_background import INTERRUPTED, Background, check_none_runs
from controller.cli.trial_candidate import CandidateAgent, read_candidate_file
from controller.cli.trial_publisher import Publisher
from controller.cli.trial_result import say, tell
from controller.cli.trial_text import announcement, progress
from controller.config.yaml_document import read_document
from controller.core.units import NS_PER_SEC, UnitError, count, parse_duration, parse_ratio
from controller.host.names import printable
from controller.page.view import mapping, text
from controller.trial.blocks import Arm, Design, TrialError, append, begin_anew, start
from controller.trial.comparison import candidate, is_in_force
from controller.trial.runner import Clock, HarmError, Runner, TrialEndError

__all__ = ("run",)

_ENDS = {signal.SIGTERM, signal.SIGHUP, signal.SIGINT}
_HARM_TRIES, _HARM_AGAIN_S = 30, 10.0


def run(arguments: argparse.Namespace) -> int:
    """Run the trial that the options describe; return the exit code.

    :raises TrialError: an option has no such value, or a trial runs in the background already.
    :raises ConfigError: the configuration or the file of a candidate is invalid.
    :raises OSError: a file cannot be written.
    """
    design, most_harm = _design(arguments)
    config = find_config(arguments)
    read_document(config)  # first: no option replaces it here
    state_dir, data_dir = find_state_dir(arguments), find_data_dir(arguments)
    # First: while another one runs, the agent may be paused by it.
    background = None
    if arguments.background:
        background = Background(data_dir)
    else:
        check_none_runs(data_dir)
    try:
        agent, design = _agent(arguments.against, config, state_dir, design)
        page = agent.first_page()
    except SourceError as error:
        return fail(error, FAILED)
    if (problem := _not_ready(page, design)) is not None:
        return fail(problem, FAILED)
    path, node = _file(arguments), _node(page)
    publisher = Publisher(config, node, design.policy) if arguments.publish else None
    start(path, node, design)
    say(announcement(design, path, data_dir))
    if background is not None:
        background.begin(path, arguments.label)
        if background.leave():
            if arguments.json:
                print(json.dumps({"node": node, "seed": design.seed, "pairs": design.pairs}))
            return DONE
    clock = SystemClock()
    runner = Runner(agent, clock, design, most_harm)
    trial = _Trial(runner, design, path, publisher, background)
    return _finish(arguments, trial, node, clock)


class _Trial(NamedTuple):
    """A trial that has begun: its ``path`` has the head."""

    runner: Runner
    design: Design
    path: Path
    publisher: Publisher | None
    background: Background | None

    def follow(self) -> None:
        """Run all pairs and keep each.

        :raises TrialEndError: see ``Runner.run``.
        """
        runner = self.runner
        for number, pair in enumerate(runner.run(), 1):
            anew = runner.left_out > 0 and len(runner.pairs) == 1
            append(self.path, pair, anew=anew, changes=runner.comparison.changes)
            say([progress(pair, number, self.design)])
            if self.background is not None:
                self.background.note(runner.configuration)
            if self.publisher is not None:
                problem = self.publisher.publish(runner.pairs, runner.comparison)
                if problem:
                    say([f"not published, which the next pair makes good: {problem}"])


def _finish(arguments: argparse.Namespace, trial: _Trial, node: str, clock: Clock) -> int:
    """Run *trial* to its end, and print what it found."""
    runner, publisher, background = trial.runner, trial.publisher, trial.background
    ended, hurt = "", None
    # A terminal that is closed and a service manager end a trial as Ctrl-C does.
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:  # as after nohup
            signal.signal(signum, signal.default_int_handler)
    # An agent that begins a trial has blocked them, and its children inherit that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
    try:
        if background is not None:
            background.gone_on()
        trial.follow()
    except TrialEndError as error:
        ended = str(error)
        hurt = error if isinstance(error, HarmError) else None
    except KeyboardInterrupt:
        ended = INTERRUPTED
        tell(arguments, [runner.results(node)], ended)
        raise
    finally:
        _note_left_out(trial.path, runner)
        # What broke the trial is not known here: then the record has no end.
        if background is not None and (ended or sys.exception() is None):
            background.note(runner.configuration)  # no pair may have ended
            background.end(ended, hurt.arm if hurt else "")
    if runner.lost:
        why = "the agent was started again or configured otherwise meanwhile"
        say([f"{count(runner.lost, 'pair')} lost, because {why}"])
    try:
        tell(arguments, [runner.results(node)], ended)
    finally:  # also if the report cannot be written
        if publisher is not None and hurt is not None and hurt.arm is Arm.ENFORCE:
            _publish_harm(publisher, runner, hurt.began_s, clock)
    return FAILED if ended else DONE


def _agent(
    against: Path | None, config: Path, state_dir: Path, design: Design
) -> tuple[HostAgent, Design]:
    """Return the agent that takes what *design* compares, and the design with its candidate.

    :raises ConfigError: the configuration or the file *against* is invalid.
    :raises SourceError: the agent has no pages.
    """
    if against is None:
        return HostAgent(config, state_dir, design.policy), design
    file = read_candidate_file(against, config)
    design = replace(design, policy=file.candidate.name, candidate=file.candidate.digest)
    return CandidateAgent(config, state_dir, file), design


def _note_left_out(path: Path, runner: Runner) -> None:
    """Note in the file that all of its pairs are left out, if that is so."""
    if runner.pairs or not runner.left_out:
        return
    try:
        begin_anew(path)
    except OSError as error:  # the result is still to be printed
        say([f"{path}: {error.strerror}, so --read counts the pairs that are left out"])


def _publish_harm(publisher: Publisher, runner: Runner, hurt_s: float, clock: Clock) -> None:
    """Publish that the policy hurt a service, and try for five minutes.

    The pairs until then are too few for a verdict. So without this a rollout would go on.
    """
    for _ in range(_HARM_TRIES):
        problem = publisher.publish(runner.pairs, runner.comparison, hurt_s)
        if not problem:
            return
        say([f"the harm is not published yet: {problem}"])
        clock.sleep(_HARM_AGAIN_S)
    say(["the harm was not published: take the policy from this node, or end the rollout"])


def _design(arguments: argparse.Namespace) -> tuple[Design, float]:
    """Return the design that the options give, and the harm that ends the trial.

    :raises TrialError: an option has no such value.
    """
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


def _not_ready(page: Page, design: Design) -> str | None:
    """Return why an agent with *page* cannot be tried by *design*."""
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


def _node(page: Page) -> str:
    return text(mapping(page.get("cluster")).get("node")) or os.uname().nodename


def _file(arguments: argparse.Namespace) -> Path:
    """Return the file for the pairs, in a directory that exists."""
    if arguments.blocks is not None:
        named: Path = arguments.blocks
        return named
    directory = find_data_dir(arguments) / "trials"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory / f"{time.strftime('%Y-%m-%dT%H%M%SZ', time.gmtime())}.jsonl"
