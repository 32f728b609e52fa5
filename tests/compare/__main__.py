# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``make compare``: run the comparison, write docs/BENCHMARKS.md with its pictures, README's table.

Root is needed. Everything runs in cgroups of its own, which are removed at the end, after Ctrl-C
and also if the program is killed. Nothing else may use the machine meanwhile. Blocks are kept as
JSON lines from the first one on, so that a run that was broken off can be rendered or continued.
"""

import argparse
from collections.abc import Callable, Sequence
import contextlib
import os
from pathlib import Path
import sys
import time

from controller.cli.common import whole_number
from controller.demo.cgroups import DemoCgroups, DemoError, find_cpuacct_mount
from controller.demo.session import Interrupted, Session, interruptible
from controller.host.facts import find_cgroup_layout
from tests.compare import picture
from tests.compare.blocks import LS, Runner
from tests.compare.conditions import facts, missing
from tests.compare.jobs import JOBS
from tests.compare.link import Link
from tests.compare.memory.blocks import MIXES as MEMORY_MIXES
from tests.compare.memory.blocks import MemoryMix
from tests.compare.memory.policies import POLICIES as MEMORY_POLICIES
from tests.compare.memory.run import render_memory, run_memory_blocks
from tests.compare.plan import LEARN_S, Mix, Task, plan, run
from tests.compare.policies import DEFAULT_POLICIES, POLICIES
from tests.compare.readme import insert, table
from tests.compare.record import ALONE, Block, Failure, Record, is_usable
from tests.compare.report import render
from tests.compare.results import by_mix, median_p99_ms
from tests.compare.services import SERVICES, SHAPES, Service

# Each service and shape, and jobs that compute, share a cache, fill the memory bandwidth, and start
# processes. The full product is for --all, which takes hours.
MIXES = (
    Mix("nginx", "steady", "ffmpeg"),
    Mix("memcached", "bursty", "stream"),
    Mix("postgres", "stepped", "compiler"),
    Mix("nginx", "bursty", "vm"),
    Mix("memcached", "stepped", "xz"),
    Mix("memcached-remote", "steady", "upload"),
)
# The upload disturbs only on the link.
# pgbench runs for whole seconds, so postgres has no bursts.
EVERY_MIX = tuple(
    Mix(name, shape, job)
    for name, service in SERVICES.items()
    for shape in SHAPES
    for job in JOBS
    if service.remote == (job == "upload") and (name, shape) != ("postgres", "bursty")
)
# Start of the agent, lead of the client, end of the job: measured.
_OVERHEAD_S = 4.0
# Of the planned blocks, at most this part is repeated.
_SPARE = 0.1
# Blocks that were made under other ones cannot be continued.
_SAME = ("kernel", "CPUs", "block")
_SHORT, _FULL = "benchmarks-short.svg", "benchmarks.svg"
_PAGE, _README = Path("docs/BENCHMARKS.md"), Path("README.md")
# Seconds of a block, file of the blocks, page.
_OF_CPUS = (10, Path("reports/compare.jsonl"), _PAGE)
_OF_MEMORY = (30, Path("reports/compare-memory.jsonl"), Path("docs/MEASUREMENTS.md"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    _complete(parser, args)
    try:
        if args.memory:
            _compare_memory(args)
        else:
            _compare(args)
    except DemoError as error:
        print(f"compare: {error}", file=sys.stderr)
        return 1
    except Interrupted as interrupt:
        print(
            f"compare: interrupted, everything is cleaned up; the blocks are in {args.blocks}: "
            "--continue goes on with them, --render makes the page of them",
            file=sys.stderr,
        )
        return 128 + interrupt.signum
    return 0


def _complete(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Give *args* the defaults of the kind of comparison."""
    policies = MEMORY_POLICIES if args.memory else POLICIES
    for name in args.policy or ():
        if name not in policies:
            parser.error(f"--policy: {name} is none of {', '.join(policies)}")
    seconds, blocks, page = _OF_MEMORY if args.memory else _OF_CPUS
    args.seconds = args.seconds or seconds
    args.blocks = args.blocks or blocks
    args.output = args.output or page
    mixes: tuple[Mix, ...] | tuple[MemoryMix, ...] = EVERY_MIX if args.all else MIXES
    if args.memory:
        mixes = tuple(MEMORY_MIXES.values())
    if args.mix:
        if not all(1 <= number <= len(mixes) for number in args.mix):
            parser.error(f"--mix must be from 1 to {len(mixes)}")
        mixes = tuple(mixes[number - 1] for number in dict.fromkeys(args.mix))
    args.mixes = mixes
    if not args.output.parent.is_dir():
        parser.error(f"--output: {args.output.parent} is no directory")
    if args.memory and not args.output.is_file():
        parser.error(f"--output: {args.output} is no page with the marks of the table")


def _compare(args: argparse.Namespace) -> None:
    before = None if args.before is None else Record.load(args.before)
    if not args.render:
        _run(args, args.mixes)
    _write(Record.load(args.blocks), args.output, before)


def _compare_memory(args: argparse.Namespace) -> None:
    if not args.render:
        run_memory_blocks(
            args.blocks,
            mixes=args.mixes,
            rounds=args.rounds,
            seconds=args.seconds,
            policies=[*dict.fromkeys(args.policy or MEMORY_POLICIES)],
            again=args.again,
        )
    render_memory(args.blocks, args.output)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make compare", description=__doc__)
    minutes = len(MIXES) * (len(DEFAULT_POLICIES) + 1) * (10.0 + _OVERHEAD_S) / 60
    parser.add_argument(
        "--rounds",
        type=whole_number,
        default=5,
        help=f"blocks of each policy in a mix, {minutes:.0f} minutes each (default: 5)",
    )
    parser.add_argument(
        "--seconds",
        type=whole_number,
        help="length of a block (default: 10, with --memory 30)",
    )
    parser.add_argument(
        "--memory",
        action="store_true",
        help="a service beside jobs that need its memory, in a cgroup that is the node",
    )
    parser.add_argument("--all", action="store_true", help="every service, shape and job: hours")
    parser.add_argument(
        "--mix", type=int, action="append", help="only this mix, from 1; repeatable"
    )
    parser.add_argument("--policy", action="append", metavar="NAME", help="repeatable")
    parser.add_argument("--blocks", type=Path, help=f"(default: {_OF_CPUS[1]})")
    parser.add_argument(
        "--continue", dest="again", action="store_true", help="go on with the file of --blocks"
    )
    parser.add_argument("--output", type=Path, help=f"(default: {_PAGE})")
    parser.add_argument("--render", action="store_true", help="only write the page, from --blocks")
    parser.add_argument(
        "--before",
        type=Path,
        metavar="FILE",
        help="blocks of an earlier run: the page names the verdicts that differ",
    )
    return parser


def _write(record: Record, output: Path, before: Record | None) -> None:
    usable = record.usable
    if not usable:
        raise DemoError(f"{record.path} has no usable block")
    output.with_name(_SHORT).write_text(picture.short(usable))
    output.with_name(_FULL).write_text(picture.every_mix(usable))
    output.write_text(render(record, (_SHORT, _FULL), before))
    print(f"compare: {output}, {_SHORT} and {_FULL} beside it")
    policies, mixes = {block.policy for block in usable}, set(by_mix(usable))
    if output == _PAGE and policies.issuperset(DEFAULT_POLICIES) and mixes == set(map(str, MIXES)):
        _README.write_text(insert(_README.read_text(), table(usable)))
        print(f"compare: the table in {_README}")


def _run(args: argparse.Namespace, mixes: Sequence[Mix]) -> None:
    policies = [ALONE, *dict.fromkeys(args.policy or DEFAULT_POLICIES)]
    if lacking := missing(mixes):
        raise DemoError("; ".join(lacking))
    conditions = facts(args.seconds)
    if args.again:
        record = Record.load(args.blocks)
        record.resume(conditions, _SAME)
    else:
        record = Record.start(args.blocks, conditions)
    every = plan(mixes, policies, args.rounds)
    tasks = [task for task in every if task.key not in record.done]
    seconds = len(tasks) * (args.seconds + _OVERHEAD_S)
    if any(POLICIES[each].mode for each in policies if each != ALONE):
        seconds += len({task.mix for task in tasks}) * (LEARN_S + _OVERHEAD_S)
    minutes = seconds / 60
    print(
        f"compare: {len(tasks)} blocks in {len(mixes)} mixes, about {minutes:.0f} minutes, "
        f"up to {minutes * (1 + _SPARE):.0f} with repetitions",
        flush=True,
    )
    layout = find_cgroup_layout()
    cpuacct = find_cpuacct_mount(layout.mount) if layout.version == "v1" else None
    cgroups = DemoCgroups(
        cpu_mount=layout.mount,
        cpuacct_mount=cpuacct,
        version=layout.version,
        tag=f"compare-{os.getpid()}",
        unified=layout.unified if layout.version == "v1" else None,
    )
    with interruptible(), Session(cgroups) as session, Link(session.home) as link:
        cgroups.create((LS, "be-filler", *(f"be-{job}" for job in JOBS)))
        runner = Runner(session, layout.mount, layout.version, args.seconds, link)
        with Attempts(runner.run, runner.serving, record) as attempts:
            run(tasks, attempts, int(_SPARE * len(every)))


class Attempts:
    """Runs blocks beside the service that they need, records them and prints a line for each.

    A service runs until a block needs another one or fails.
    """

    def __init__(
        self,
        run_block: Callable[[Task, int], Block],
        serving: Callable[[Service], contextlib.AbstractContextManager[int]],
        record: Record,
    ) -> None:
        self._run_block, self._serving, self._record = run_block, serving, record
        self._service = contextlib.ExitStack()
        self._served = ""
        self._port = 0
        self._start_s = time.monotonic()
        self._count = 0

    def __enter__(self) -> "Attempts":
        return self

    def __exit__(self, *_: object) -> None:
        self._service.close()

    def __call__(self, task: Task, left: int) -> bool:
        """Run the block *task*; return whether its result can be used."""
        try:
            result: Block | Failure = self._run_block(task, self._port_of(task.mix.service))
        except Exception as error:  # whatever failed, the other blocks do not depend on it
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            mix, policy, number = task.key
            result = Failure(mix=mix, policy=policy, round=number, reason=reason)
            self._served = ""
        self._record.add(result)
        self._count += 1
        left_s = (time.monotonic() - self._start_s) / self._count * left
        print(f"compare: {left_s / 60:.0f} min left, {_line(result)}", flush=True)
        return isinstance(result, Block) and is_usable(result)

    def _port_of(self, service: str) -> int:
        if self._served != service:
            self._service.close()
            self._served = ""
            self._port = self._service.enter_context(self._serving(SERVICES[service]))
            self._served = service
        return self._port


def _line(result: Block | Failure) -> str:
    title = f"{result.mix}, {result.policy}, round {result.round}"
    if isinstance(result, Failure):
        return f"{title}: unusable, {result.reason}"
    p99 = f"{median_p99_ms(result):.2f} ms" if result.p99_ms else "unknown"
    return (
        f"{title}: {'' if is_usable(result) else 'unusable, '}p99 {p99}, "
        f"{result.work:.1f} {result.unit or 'work'}/s, unaccounted "
        f"{result.unaccounted_ratio:+.1%}, stolen {result.steal_ratio:.1%}"
    )


if __name__ == "__main__":
    sys.exit(main())
