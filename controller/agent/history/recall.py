# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the page shows of the hours before this run, read from the files once at the start."""

from collections.abc import Iterator
from pathlib import Path

from controller.agent.history.moments import told_loops
from controller.agent.history.records import MOMENTS, Moment, Start, decode
from controller.core.decision import Plan
from controller.core.model import CgroupId, Workload
from controller.core.units import NS_PER_SEC
from controller.host.ring import RingReader
from controller.page.hours import Hours

__all__ = ("MomentView", "recall")

# One moment of that time is enough, and those with decisions: six hours in which something always
# happened take a quarter of a second of CPU time.
_EVERY_NS = 10 * NS_PER_SEC
_WALL = b'{"wall_ns":'


class MomentView:
    """Shows moments in *hours*, with the names of their workloads."""

    def __init__(self, hours: Hours) -> None:
        self._hours = hours
        self._workloads: tuple[Workload, ...] = ()
        self._names: dict[CgroupId, str] = {}

    def set_workloads(self, workloads: tuple[Workload, ...]) -> None:
        """Take the workloads of the moments that follow."""
        if workloads is not self._workloads:
            self._workloads = workloads
            self._names = {each.cgroup: each.name for each in workloads}

    def show(self, moment: Moment, wall_ns: int) -> None:
        """Show *moment*."""
        self._hours.take(
            wall_ns,
            loops=(*moment.loops, *moment.worst),
            demands=moment.demands,
            causes=moment.causes,
            names=lambda cgroup: self._names.get(cgroup, f"cgroup {cgroup.id}"),
            events=(f"{each.subject}: {each.text}" for each in moment.verdicts),
            be_use_cpus=moment.be_use_cpus,
        )

    def show_quiet(self, plan: Plan, wall_ns: int, be_use_cpus: float | None) -> None:
        """Show *plan*, with which nothing happened."""
        self._hours.take(
            wall_ns, loops=told_loops(plan), demands=plan.demands, be_use_cpus=be_use_cpus
        )


def recall(view: MomentView, directory: Path, since_ns: int) -> None:
    """Show the moments since *since_ns* (since 1970) that the files in *directory* have.

    What is damaged or of a newer version is left out.

    :raises OSError: there is no history, or it does not belong to root alone.
    """
    lines = RingReader(directory, MOMENTS).lines(since_s=since_ns / NS_PER_SEC)
    for line in decode(_thinned(lines, since_ns)):
        if isinstance(line, str):
            continue
        record = line.record
        if isinstance(record, Start | Moment) and record.workloads:
            view.set_workloads(record.workloads)
        if isinstance(record, Moment) and line.wall_ns >= since_ns:
            view.show(record, line.wall_ns)


def _thinned(lines: Iterator[bytes], since_ns: int) -> Iterator[bytes]:
    """Yield the lines that are needed, as they are: decoding all would take seconds."""
    named = b""  # the last line before *since_ns* with the names of workloads
    next_ns = since_ns
    for line in lines:
        head, _, rest = line.partition(b",")
        try:
            wall_ns = int(head.removeprefix(_WALL))
        except ValueError:
            continue
        if wall_ns + _EVERY_NS < next_ns:
            next_ns = since_ns  # the clock was set back
        lists = b'"workloads":[' in rest
        if rest.startswith(b'"start"'):
            yield line  # has the version of the lines that follow
            named = b"" if lists else named
        elif wall_ns < since_ns:
            named = line if lists else named
        elif wall_ns >= next_ns or lists or b'"verdicts":[' in rest:
            if named:
                yield named
                named = b""
            yield line
            next_ns = max(next_ns, wall_ns + _EVERY_NS)
