# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint simulate``: policies side by side on simulated nodes."""

import argparse
from collections.abc import Iterable
from dataclasses import asdict
import json
from pathlib import Path
import sys
from typing import TYPE_CHECKING

from controller.cli.common import DONE, WRONG, fail

if TYPE_CHECKING:
    from controller.simulation.run import Run, Task

__all__ = ("HELP", "add_arguments", "main")

HELP = "compare policies on simulated nodes: objective kept, best-effort work, writes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    parser.description = (
        "Runs policies on simulated nodes: services that answer requests beside best-effort jobs. "
        "Printed are the share of seconds in which the p99 of a service was above its objective, "
        "the work of the jobs in effective CPUs, and the knobs written per minute. A run of "
        "240 s takes one to three seconds. docs/SIMULATION.md describes nodes and policies."
    )
    parser.add_argument(
        "--scenario",
        action="extend",
        nargs="+",
        metavar="NAME",
        help="scenarios (default: all; see --list)",
    )
    parser.add_argument(
        "--policy",
        action="extend",
        nargs="+",
        metavar="NAME",
        help="policies (default: all; see --list)",
    )
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="profile of the services for the policy 'sweetpoint' (default: the shipped default)",
    )
    parser.add_argument(
        "--seeds",
        type=_count,
        default=1,
        metavar="N",
        help="runs with the seeds 1 to N; with more than one, means have 95 %% intervals",
    )
    parser.add_argument(
        "--seconds", type=_count, default=240, metavar="S", help="length of a run (default: 240)"
    )
    parser.add_argument(
        "--warm-up",
        type=_count,
        default=60,
        metavar="S",
        help="seconds at the start that do not count (default: 60)",
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--list", action="store_true", help="list scenarios and policies, and end")


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code: 0 done, 2 an unknown name, an invalid profile or too few seconds."""
    from controller.config.yaml_document import ConfigError
    from controller.simulation.policies.registry import policies
    from controller.simulation.run import Task
    from controller.simulation.scenarios import SCENARIOS

    try:
        entries = policies(arguments.profile)
    except ConfigError as error:
        return fail(error, WRONG)
    if arguments.list:
        for title, texts in (
            ("scenarios", {name: each.title for name, each in SCENARIOS.items()}),
            ("policies", {name: each.title for name, each in entries.items()}),
        ):
            print(f"{title}:")
            width = max(map(len, texts))
            print("\n".join(f"  {name:{width}}  {text}" for name, text in texts.items()))
        return DONE
    if arguments.seconds <= arguments.warm_up:
        return fail("--seconds must be more than --warm-up", WRONG)
    try:
        scenarios = [SCENARIOS[name] for name in _unique(arguments.scenario or SCENARIOS)]
        chosen = {name: entries[name] for name in _unique(arguments.policy or entries)}
    except KeyError as error:
        return fail(f"no scenario or policy named {error} (see --list)", WRONG)
    tasks = [
        Task(scenario, name, entry.factory, seed)
        for scenario in scenarios
        for name, entry in chosen.items()
        for seed in range(1, arguments.seeds + 1)
    ]
    runs = _run(tasks, arguments.seconds, arguments.warm_up)
    _print(runs, {each.name: each.title for each in scenarios}, arguments.json)
    return DONE


def _run(tasks: "list[Task]", seconds: int, warm_up: int) -> "list[Run]":
    from controller.simulation.run import run

    runs = []
    shown = sys.stderr.isatty()
    for number, task in enumerate(tasks, 1):
        if shown:
            text = f"{number}/{len(tasks)} {task.scenario.name} {task.policy} seed {task.seed}"
            print(f"\r{text:79.79}", end="", file=sys.stderr, flush=True)
        runs.append(run(task, seconds, warm_up))
    if shown:
        print(f"\r{'':79}\r", end="", file=sys.stderr, flush=True)
    return runs


def _print(runs: "list[Run]", titles: dict[str, str], as_json: bool) -> None:
    from controller.simulation.table import format_table, summarise

    summaries = summarise(runs)
    if as_json:
        print(json.dumps([asdict(each) for each in summaries], indent=2))
    else:
        print(format_table(summaries, titles))


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value
