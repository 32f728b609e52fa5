# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The course of a demonstration: check of the host, phases, table, report."""

import argparse
from collections.abc import Sequence
import dataclasses
import json
from pathlib import Path
import sys
import time
from typing import TextIO

from controller.demo.cgroups import DemoCgroups, DemoError, find_cpuacct_mount
from controller.demo.memory import missing_memory, run_memory
from controller.demo.phases import Driver, PhaseSpec, phase_plan, steal_s
from controller.demo.programs import BestEffort, best_effort_jobs
from controller.demo.report import render
from controller.demo.results import DROPPED_S, MemoryRun, Phase, Run, summarise
from controller.demo.session import Interrupted, Session, describe, interruptible, missing_for
from controller.demo.simulated import simulate
from controller.demo.table import format_table
from controller.demo.verdict import disturbance, memory_sentence, sentence, verdicts
from controller.host.facts import find_cgroup_layout
from controller.host.memory import find_memory

__all__ = ("show",)

SIGNAL_EXIT_BASE = 128  # the shell's convention: 130 after Ctrl-C


def show(args: argparse.Namespace, out: TextIO) -> int:
    """Run the demonstration; return 0, 1 if it failed or 128 + signal if it was interrupted."""
    jobs = best_effort_jobs(args.be)
    plan = phase_plan(jobs, args.seconds, args.rounds, args.loop_seconds if args.loop else None)
    progress = _Progress(out)
    try:
        missing = ["--simulate was given"] if args.simulate else missing_for(jobs)
        for reason in missing:
            print(f"not the real programs: {reason}", file=out)
        run = simulate(plan, missing) if missing else _real(plan, jobs, args, progress)
    except Interrupted as error:
        progress.end()
        print(f"interrupted by {error}: everything was stopped and removed", file=out)
        return SIGNAL_EXIT_BASE + error.signum
    except DemoError as error:
        progress.end()
        print(f"the demonstration failed: {error}", file=sys.stderr)
        return 1
    progress.end()
    _show(run, out)
    report = args.report or Path("reports") / time.strftime("sweetpoint-demo-%Y%m%d-%H%M%S.html")
    # Without a name from the user the current directory may be anyone's, and a link lie there.
    _write(report, render(run), "w" if args.report else "x")
    print(f"\nreport: {report}", file=out)
    if args.json:
        _write(args.json, json.dumps(dataclasses.asdict(run)))
        print(f"raw numbers: {args.json}", file=out)
    return 0


class _Progress:
    """Progress: on a terminal one line that is rewritten, otherwise one line per phase."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._live = out.isatty()
        self._open = False

    def phase(self, number: int, of: int, title: str, length: str) -> None:
        self._prefix = f"[{number}/{of}] "
        self.update(f"{title}  starting")
        if not self._live:
            print(f"{self._prefix}{title}, {length}", file=self._out, flush=True)

    def update(self, text: str) -> None:
        if self._live:
            self._out.write(f"\r\x1b[K{self._prefix}{text}")
            self._out.flush()
            self._open = True

    def end(self) -> None:
        if self._open:
            self._out.write("\r\x1b[K")
            self._out.flush()
            self._open = False


def _real(
    plan: Sequence[PhaseSpec],
    jobs: Sequence[BestEffort],
    args: argparse.Namespace,
    progress: _Progress,
) -> Run:
    layout = find_cgroup_layout()
    memory = find_memory(layout.unified)
    left_out = "--no-memory was given" if args.no_memory else missing_memory(memory)
    of = len(plan) + (left_out is None)
    cgroups = DemoCgroups(
        cpu_mount=layout.mount,
        cpuacct_mount=find_cpuacct_mount(layout.mount) if layout.version == "v1" else None,
        version=layout.version,
        memory=memory.mount if left_out is None else None,
    )
    start_s, start_steal_s = time.monotonic(), steal_s()
    with interruptible(), Session(cgroups) as session:
        driver = Driver(session, args.rate, progress.update)
        load = driver.start(jobs)
        phases: list[Phase] = []
        for number, spec in enumerate(plan):
            progress.phase(number + 1, of, spec.title, f"{spec.seconds:.0f} s")
            following = plan[number + 1] if number + 1 < len(plan) else None
            keep = bool(spec.loop_sweet_point and following and following.loop_sweet_point)
            phases.append(driver.run(spec, keep_job=keep))
        runs: tuple[MemoryRun, ...] = ()
        if left_out is None:
            progress.phase(of, of, "memory, unmanaged and managed", "ten seconds or so")
            runs = run_memory(session, memory, progress.update)
    elapsed_s = time.monotonic() - start_s
    environment = describe(jobs)
    environment.append(("cgroup", f"{layout.version}, {layout.mount}"))
    environment.append(("load", f"{load['rate']:g} requests/s, Poisson, {load['scheduling']}"))
    environment.append(("memory phases", left_out or f"{memory.version}, {memory.mount}"))
    environment.append(("steal", f"{(steal_s() - start_steal_s) / elapsed_s:.1%} of one CPU"))
    environment.append(("took", f"{elapsed_s:.0f} s"))
    return Run(
        simulated=False,
        environment=tuple(environment),
        notes=_notes(plan, args.rounds),
        phases=tuple(phases),
        memory=runs,
    )


def _notes(plan: Sequence[PhaseSpec], rounds: int) -> tuple[str, ...]:
    order = ", ".join(dict.fromkeys(spec.title for spec in plan))
    return (
        f"Order of the phases: {order}; {rounds} round(s). Later phases find warmer caches.",
        f"The first {DROPPED_S} s of every phase are drawn and not counted, in all columns but "
        "batch work, which covers the whole phase.",
        "Latency counts from the intended send time. A request that fails counts as 5 s.",
        "The agent runs in observe mode in the unmanaged phases, so its cost is in every phase.",
        "Wait p99 is that of the waits of the service's threads for a CPU, arrival p99 that of an "
        "arrival at a random time. Both are medians of the one-second windows.",
        "Batch work of stress-ng is the bogo operations of its CPU stressor.",
        "Memory phases: a cgroup of 300 MiB stands for the node. What the kernel ends there is in "
        "the kernel's log.",
    )


def _show(run: Run, out: TextIO) -> None:
    if run.simulated:
        print("SIMULATED: no program ran and nothing was measured.\n", file=out)
    print(format_table(summarise(run.phases)), file=out)
    print(file=out)
    for verdict in verdicts(run.phases):
        print(sentence(verdict), file=out)
    if run.memory:
        print(memory_sentence(run.memory), file=out)
    if warning := disturbance(run.phases):
        print(warning, file=out)


def _write(path: Path, text: str, mode: str = "w") -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        print(f"cannot write {path}: {error.strerror}", file=sys.stderr)
