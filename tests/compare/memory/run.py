# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the comparison where memory is short, and writes its table into a page."""

from collections.abc import Sequence
import os
from pathlib import Path
import random
import shutil

from controller.demo.cgroups import DemoCgroups, DemoError, find_cpuacct_mount
from controller.demo.memory import missing_memory
from controller.demo.session import Session, first_line, interruptible
from controller.host.facts import find_cgroup_layout
from controller.host.memory import find_memory
from tests.compare.conditions import facts
from tests.compare.memory.blocks import MemoryMix, MemoryRunner
from tests.compare.memory.job import READER
from tests.compare.memory.node import CAPACITY_MIB, MemoryNode
from tests.compare.memory.policies import POLICIES
from tests.compare.memory.record import MemoryBlock, MemoryRecord
from tests.compare.memory.report import lines
from tests.compare.readme import insert_between
from tests.compare.record import Failure

__all__ = ("render_memory", "run_memory_blocks")

_MARK = "table of make compare --memory"
# Start of redis and of the agent, lead of the client, late answers.
_OVERHEAD_S = 10.0
Task = tuple[MemoryMix, str, int]


def render_memory(blocks: Path, page: Path) -> None:
    """Write the table of the file *blocks* between its marks in *page*.

    :raises DemoError: there is no block, or *page* lacks the marks.
    """
    record = MemoryRecord.load(blocks)
    if not record.blocks:
        raise DemoError(f"{blocks} has no block")
    page.write_text(insert_between(page.read_text(), _MARK, lines(record)))
    print(f"compare: the table in {page}")


def run_memory_blocks(
    blocks: Path,
    *,
    mixes: Sequence[MemoryMix],
    rounds: int,
    seconds: float,
    policies: Sequence[str],
    again: bool,
) -> None:
    """Run the blocks of *mixes*; *again*: those that the file *blocks* does not have.

    :raises DemoError: something that is needed is missing.
    """
    layout = find_cgroup_layout()
    memory = find_memory(layout.unified)
    why = missing_memory(memory)
    for program in ("redis-server", "nginx"):
        if why is None and shutil.which(program) is None:
            why = f"{program} missing: tools/bootstrap bench installs it"
    if why is not None or memory.mount is None:
        raise DemoError(why or "the memory controller is not mounted")
    record = MemoryRecord.load(blocks) if again else _started(blocks)
    programs = first_line("redis-server", "--version"), first_line("nginx", "-v")
    capacity = f"{CAPACITY_MIB} MiB"
    record.begin({**facts(seconds), "programs": "; ".join(programs), "node": capacity})
    tasks = [
        (mix, policy, number)
        for mix, policy, number in _plan(mixes, rounds, policies)
        if (mix.name, policy, number) not in record.done
    ]
    lengths_s = (seconds * mix.lengthened + _OVERHEAD_S for mix, _, _ in tasks)
    minutes = sum(lengths_s) / 60
    print(f"compare: {len(tasks)} blocks, about {minutes:.0f} minutes", flush=True)
    cgroups = DemoCgroups(
        cpu_mount=layout.mount,
        cpuacct_mount=find_cpuacct_mount(layout.mount) if layout.version == "v1" else None,
        version=layout.version,
        tag=f"compare-{os.getpid()}",
        memory=memory.mount,
    )
    with interruptible(), Session(cgroups) as session:
        cgroups.create(())
        node = MemoryNode(cgroups, memory.mount, memory.version)
        node.make()
        runner = MemoryRunner(session, node, seconds)
        for task in tasks:
            result = _attempt(runner, task)
            record.add(result)
            print(f"compare: {_line(result)}", flush=True)


def _started(blocks: Path) -> MemoryRecord:
    if blocks.exists():
        blocks.replace(blocks.with_name(f"{blocks.name}.old"))
    return MemoryRecord(path=blocks)


def _plan(mixes: Sequence[MemoryMix], rounds: int, policies: Sequence[str]) -> list[Task]:
    """Return the blocks; policies are in random order in each round, the same each time."""
    return [
        (mix, policy, number)
        for number in range(1, rounds + 1)
        for mix in mixes
        for policy in random.Random(f"{mix.name} {number}").sample(policies, len(policies))
        if mix.job == READER or not POLICIES[policy].refaults
    ]


def _attempt(runner: MemoryRunner, task: Task) -> MemoryBlock | Failure:
    mix, policy, number = task
    try:
        return runner.run(mix, policy, number)
    except Exception as error:  # the other blocks do not depend on it
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return Failure(mix=mix.name, policy=policy, round=number, reason=reason)


def _line(result: MemoryBlock | Failure) -> str:
    title = f"{result.mix}, {result.policy}, round {result.round}"
    if isinstance(result, Failure):
        return f"{title}: unusable, {result.reason}"
    return (
        f"{title}: the service died {result.service_deaths} times, the job did "
        f"{result.work_mib_s:.0f} MiB/s, {result.job_deaths} ends, {result.evictions} evictions"
    )
