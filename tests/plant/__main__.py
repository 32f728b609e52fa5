# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The command ``python -m tests.plant``: run scenarios and print one table."""

import argparse
from collections.abc import Generator, Sequence
from contextlib import closing
from multiprocessing import Pool
from pathlib import Path
import signal
import sys

from controller.config.load import ConfigError
from tests.plant.agent import Fault, Setup, settings_for
from tests.plant.machine import Machine
from tests.plant.profiles import ProfileKind
from tests.plant.results import BASELINE, compare, load, save, table
from tests.plant.rivals import RIVALS
from tests.plant.run import LAW, Job, Result, run
from tests.plant.scenarios import SCENARIOS

_INTERRUPTED = 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.plant", description=__doc__)
    add = parser.add_argument
    add("--scenario", nargs="+", choices=[*SCENARIOS], default=[*SCENARIOS], metavar="NAME",
        help=f"of {', '.join(SCENARIOS)} (default: all)")  # fmt: skip
    add("--policy", nargs="+", choices=[LAW, *RIVALS], default=[LAW], metavar="NAME",
        help=f"of {LAW}, {', '.join(RIVALS)} (default: {LAW})")  # fmt: skip
    add("--profile", type=ProfileKind, choices=[*ProfileKind], default=ProfileKind.OBJECTIVE)
    add("--fault", type=Fault, choices=[*Fault], default=Fault.NONE,
        help="what is wrong with the service's figure from 100 s on")  # fmt: skip
    add("--seeds", type=int, default=2, metavar="N", help="seeds 1 to N (default: 2)")
    add("--first-seed", type=int, default=1, metavar="N")
    add("--jobs", type=int, default=1, metavar="N", help="processes (default: 1)")
    add("--without", nargs="+", default=[], metavar="SWITCH", help="parts of the law that are off")
    add("--resctrl", action="store_true", help="the machine has resctrl")
    add("--looks", action="store_true", help="leave out ticks that need no decision")
    add("--json", type=Path, metavar="FILE", help="write the results to FILE")
    add("--baseline", type=Path, metavar="FILE",
        help=f"take the runs of {BASELINE} from a file of --json")  # fmt: skip
    add("--compare", nargs=2, type=Path, metavar=("A", "B"),
        help="run nothing; compare two files of --json by their common seeds")  # fmt: skip
    return parser


def _ignore_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the others


def _results(jobs: Sequence[Job], processes: int) -> Generator[Result, None, None]:
    if processes <= 1:
        yield from map(run, jobs)
        return
    with Pool(processes, _ignore_interrupt) as pool:
        yield from pool.imap(run, jobs)


def _run_all(jobs: Sequence[Job], processes: int, found: list[Result]) -> bool:
    """Run *jobs* and add the results to *found*; return false if the user interrupted it."""
    before = len(found)
    with closing(_results(jobs, processes)) as results:
        try:
            for job, result in zip(jobs, results, strict=True):
                found.append(result)
                done = len(found) - before
                print(
                    f"{done}/{len(jobs)} {job.scenario} {job.policy} seed {job.seed}: "
                    f"{result.violated_percent:.1f} % violated, {result.work_cpus:.2f} CPUs",
                    file=sys.stderr,
                    flush=True,
                )
        except KeyboardInterrupt:
            print("interrupted; what is done is kept", file=sys.stderr)
            return False
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.compare:
        try:
            before, after = map(load, options.compare)
        except (OSError, ValueError) as error:
            parser.error(str(error))
        print(compare(before, after))
        return 0
    if options.seeds < 1 or options.jobs < 1:
        parser.error("--seeds and --jobs must be at least 1")
    setup = Setup(
        options.profile,
        options.resctrl,
        tuple(options.without),
        options.fault,
        options.looks,
    )
    try:
        settings_for(setup, Machine())
    except ConfigError as error:
        parser.error(f"--without: {error}")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    policies = dict.fromkeys([*options.policy, BASELINE])
    jobs = [
        Job(scenario, policy, seed, setup)
        for scenario in options.scenario
        for policy in policies
        for seed in seeds
    ]
    results: list[Result] = []
    if options.baseline:
        try:
            known = load(options.baseline)
        except (OSError, ValueError) as error:
            parser.error(str(error))
        results = [each for each in known if each.policy == BASELINE and each.seed in seeds]
        ready = {(each.scenario, each.seed) for each in results}
        jobs = [j for j in jobs if j.policy != BASELINE or (j.scenario, j.seed) not in ready]
        results = [each for each in results if each.scenario in options.scenario]
    done = _run_all(jobs, options.jobs, results)
    print(table(results))
    if options.json:
        save(options.json, str(setup), results)
    return 0 if done else _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
