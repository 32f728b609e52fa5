# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint simulate``: policies side by side on simulated nodes."""

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import asdict
import json
import os
from pathlib import Path
import sys
import time
from typing import TYPE_CHECKING

from controller.cli.common import DONE, FAILED, WRONG, fail, find_unwritable, whole_number
from controller.host.os_errors import reason

if TYPE_CHECKING:
    from controller.simulation.comparison import Comparison
    from controller.simulation.model import Scenario

__all__ = ("EXAMPLE", "HELP", "add_arguments", "main")

# Without a terminal.
_LINE_EVERY_S = 30

HELP = "compare policies on simulated nodes: objective kept, best-effort work, writes"
EXAMPLE = "sweetpoint simulate --scenario main --seeds 3"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-command to *parser*."""
    parser.description = (
        "Runs policies on simulated nodes: services that answer requests beside best-effort jobs. "
        "Printed are the share of seconds in which the p99 of a service was above its objective, "
        "the work of the jobs in effective CPUs, and the knobs written per minute. A run of "
        "240 s takes one to four seconds. docs/SIMULATION.md describes nodes and policies."
    )
    add = parser.add_argument
    add(
        "--scenario",
        action="extend",
        nargs="+",
        metavar="NAME",
        help="scenarios or groups of scenarios (default: main; see --list)",
    )
    add(
        "--policy",
        action="extend",
        nargs="+",
        metavar="NAME",
        help="policies (default: all but the oracle; see --list)",
    )
    add(
        "--recording",
        type=Path,
        metavar="FILE|DIR",
        help="a recording (run --record) or the history in DIR (data_dir), whose load and jobs "
        "become the scenario 'recording'",
    )
    add(
        "--profile",
        type=Path,
        metavar="FILE",
        help="profile of the services for the policy 'sweetpoint' (default: the shipped default)",
    )
    add(
        "--seeds",
        type=whole_number,
        default=1,
        metavar="N",
        help="runs with the seeds 1 to N; with more than one, means have 95 %% intervals",
    )
    add(
        "--seconds",
        type=whole_number,
        default=240,
        metavar="S",
        help="length of a run (default: 240)",
    )
    add(
        "--warm-up",
        type=whole_number,
        default=60,
        metavar="S",
        help="seconds at the start that do not count (default: 60)",
    )
    add(
        "--tune",
        action="store_true",
        help="search the best settings of the published policies for each scenario first "
        "(up to 44 more runs for each)",
    )
    add(
        "--processes",
        type=whole_number,
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="policies and scenarios that run at the same time (default: the number of CPUs)",
    )
    add("--json", action="store_true", help="print the results as JSON")
    add(
        "--plot",
        type=Path,
        metavar="FILE.svg",
        help="draw p99 and work over time, of the first seed",
    )
    add("--list", action="store_true", help="list scenarios and policies, and end")


def main(arguments: argparse.Namespace) -> int:
    """Return the exit code.

    0 done, 1 the plot cannot be written or the recording cannot be read, 2 wrong use or profile.
    """
    from controller.agent.recording import RecordingError
    from controller.config.yaml_document import ConfigError
    from controller.simulation.comparison import compare
    from controller.simulation.policies.registry import ORACLE, policies
    from controller.simulation.recorded import NAME as RECORDING
    from controller.simulation.scenarios import GROUPS, SCENARIOS
    from controller.simulation.search import Budget

    try:
        entries = policies(arguments.profile)
    except ConfigError as error:
        return fail(error, WRONG)
    if arguments.list:
        for group, names in GROUPS.items():
            _list(f"scenarios of {group}", {name: SCENARIOS[name].title for name in names})
        _list("policies", {name: each.title for name, each in entries.items()})
        return DONE
    if arguments.seconds <= arguments.warm_up:
        return fail("--seconds must be more than --warm-up", WRONG)
    if problem := find_unwritable(arguments.plot):
        return fail(problem, WRONG)
    default = [name for name in entries if name != ORACLE]
    named = _expand(arguments.scenario or (() if arguments.recording else ["main"]), GROUPS)
    if arguments.recording is not None:
        named = [name for name in named if name != RECORDING]  # it is added in any case
    try:
        scenarios = [SCENARIOS[name] for name in named]
        chosen = {name: entries[name] for name in _unique(arguments.policy or default)}
    except KeyError as error:
        return fail(f"no scenario or policy named {error} (see --list)", WRONG)
    if arguments.recording is not None:
        try:
            scenarios.append(_recorded(arguments.recording))
        except (RecordingError, ValueError, OSError) as error:
            return fail(error, FAILED)
    progress = _Progress()
    try:
        comparison = compare(
            scenarios,
            chosen,
            seeds=range(1, arguments.seeds + 1),
            budget=Budget(arguments.seconds, arguments.warm_up),
            tune=arguments.tune,
            progress=progress.show,
            processes=arguments.processes,
        )
    finally:
        progress.end()
    _print(comparison, arguments.json)
    if arguments.plot is not None:
        return _plot(comparison, arguments.plot)
    return DONE


def _recorded(path: Path) -> "Scenario":
    from controller.agent.history.reader import HistoryReader
    from controller.agent.history.records import SNAPSHOTS
    from controller.agent.history.snapshots import entries
    from controller.agent.recording import read
    from controller.simulation.recorded import Recorded

    history = HistoryReader(path, SNAPSHOTS) if path.is_dir() else None
    recorded = Recorded()
    for entry in read(path) if history is None else entries(history.lines()):
        host = None if entry.settings is None else entry.settings.host
        recorded.update(entry.snapshot, entry.workloads, host, anew=entry.anew)
    for problem in () if history is None else history.problems:
        print(f"sweetpoint: left out: {problem}", file=sys.stderr)
    return recorded.scenario(f"the load and the jobs of {path.name}")


class _Progress:
    """The newest line of progress on stderr: overwritten on a terminal, else one in a while."""

    def __init__(self) -> None:
        self._overwrites = sys.stderr.isatty()
        self._shown_s = time.monotonic()

    def show(self, text: str) -> None:
        if self._overwrites:
            print(f"\r{text:79.79}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self._shown_s >= _LINE_EVERY_S:
            self._shown_s = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._overwrites:
            print(f"\r{'':79}\r", end="", file=sys.stderr, flush=True)


def _print(comparison: "Comparison", as_json: bool) -> None:
    from controller.simulation.frontier import format_frontier, frontier
    from controller.simulation.table import format_table, summarise

    summaries = summarise(comparison.runs)
    verdicts = frontier(summaries, comparison.scenarios)
    if as_json:
        settings = [
            {"scenario": scenario, "policy": policy, "settings": text}
            for (scenario, policy), text in comparison.settings.items()
        ]
        results = [asdict(each) for each in summaries]
        compared = [asdict(each) for each in verdicts]
        whole = {"results": results, "settings": settings, "frontier": compared}
        print(json.dumps(whole, indent=2))
        return
    print(format_table(summaries, comparison.titles))
    if verdicts and len(verdicts) < len(summaries):
        print("\nfrontier:")
        print(format_frontier(verdicts))
    if comparison.settings:
        print("\nsettings found:")
        for (scenario, policy), text in comparison.settings.items():
            print(f"  {scenario} {policy}: {text}")


def _plot(comparison: "Comparison", path: Path) -> int:
    from controller.simulation.plot import draw

    try:
        path.write_text(draw(comparison.runs, comparison.titles), encoding="utf-8")
    except OSError as error:
        return fail(f"{path}: {reason(error)}", FAILED)
    return DONE


def _list(heading: str, texts: Mapping[str, str]) -> None:
    width = max(map(len, texts))
    print(f"{heading}:")
    print("\n".join(f"  {name:{width}}  {text}" for name, text in texts.items()))


def _expand(names: Iterable[str], groups: Mapping[str, tuple[str, ...]]) -> list[str]:
    return _unique(each for name in names for each in groups.get(name, (name,)))


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
