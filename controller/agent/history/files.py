# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The files of the history: two streams of lines, each gathered to blocks and written to a ring.

Records are made less often where they are expensive, see ``_MAX_CPUS``. A crash of the agent loses
the last ten seconds of moments and the last minute of snapshots, a loss of power what the kernel
had not written back.
"""

from collections.abc import Callable, Sequence
import contextlib
from dataclasses import replace
import logging
from pathlib import Path
import time
from typing import NamedTuple

from controller.agent.history.moments import MomentBuilder
from controller.agent.history.recall import MomentView, recall
from controller.agent.history.records import (
    MOMENTS,
    SNAPSHOTS,
    VERSION,
    Record,
    Start,
    Stop,
    encode,
)
from controller.agent.history.snapshots import SnapshotThinner
from controller.config.sections.agent import HistoryConfig
from controller.core.decision import Outcome, Plan
from controller.core.in_force import InForce
from controller.core.model import Snapshot, Workload
from controller.core.settings import Settings
from controller.core.units import NS_PER_SEC
from controller.host.facts import boot_id
from controller.host.ring import Ring
from controller.page.hours import Hours

__all__ = ("DIRECTORY", "HistoryFiles", "Tick")

_log = logging.getLogger(__name__)

DIRECTORY = "history"
_MOMENT_NS = 1 * NS_PER_SEC
_QUIET_NS = 60 * NS_PER_SEC
# What the page shows of the last hours: six of them, minute by minute. A younger agent has buckets
# of a second, which double until they are as wide.
_PAGE_BUCKETS = 360
_PAGE_FIRST_NS = _QUIET_NS // 64
# Each of the two streams takes at most this part of a CPU in the long run. What was not used in the
# last seconds may be used at once, at the beginning of an incident.
_MAX_CPUS = 0.002
_CREDIT_NS = 20 * NS_PER_SEC
# The part of the space that moments get: they are few and small, snapshots many and large.
_MOMENTS_PART = 4
_FLUSH_NS = {MOMENTS: 10 * NS_PER_SEC, SNAPSHOTS: 60 * NS_PER_SEC}
# A block is written when it has this size, also before its time.
_BLOCK_BYTES = 512 << 10


class Tick(NamedTuple):
    """A tick; ``outcomes`` are those of the actions of ``plan``, none in observe mode.

    ``in_force`` is the record after them.

    ``anew``: every knob was restored before it, and a new planner made.
    """

    snapshot: Snapshot
    plan: Plan
    outcomes: Sequence[Outcome]
    in_force: InForce
    workloads: tuple[Workload, ...]
    settings: Settings
    anew: bool = False


class _Stream:
    """Lines of one stream, gathered to blocks.

    ``lost`` counts the lines that were not stored. ``start_lost``: the start of the run was among
    them, and none was added since.
    """

    def __init__(self, name: str, directory: Path, max_bytes: int, pace_ns: int) -> None:
        self._name = name
        self._ring = Ring(directory, name, max_bytes, lambda: self._head)
        self._pace_ns = pace_ns
        self._head = b""
        self._lines = bytearray()
        self._count = 0
        self._since_ns = self._next_ns = self._paid_ns = 0
        self._has_start = self.start_lost = False
        self.lost = 0
        self.problem = ""

    @property
    def is_empty(self) -> bool:
        """Whether the next line begins a block."""
        return not self._lines

    def begin(self, head: Start | None, now_ns: int, wall_ns: int) -> None:
        """Begin a block; *head* becomes the first line of its file, if the block starts one."""
        self._head = b"" if head is None else encode(wall_ns, head)
        self._since_ns = now_ns

    def add(self, record: Record, wall_ns: int) -> None:
        """Add a line to the block."""
        self._lines += encode(wall_ns, record)
        self._count += 1
        if isinstance(record, Start) and record.new_run:
            self._has_start, self.start_lost = True, False

    def is_paced(self, now_ns: int) -> bool:
        """Whether another record may be made: the CPU time of those before is paid for."""
        return now_ns >= max(self._next_ns, self._paid_ns)

    def pace(self, now_ns: int) -> None:
        """Make the next record a period after *now_ns* at the earliest."""
        self._next_ns = now_ns + self._pace_ns

    def charge(self, now_ns: int, cost_s: float) -> None:
        """Charge *cost_s* of CPU time."""
        cost_ns = round(cost_s / _MAX_CPUS * NS_PER_SEC)
        self._paid_ns = max(self._paid_ns or now_ns, now_ns - _CREDIT_NS) + cost_ns

    def flush_if_due(self, now_ns: int) -> None:
        """Write the block if it is large or old."""
        old = now_ns - self._since_ns >= _FLUSH_NS[self._name]
        if self._lines and (old or len(self._lines) >= _BLOCK_BYTES):
            self.flush()

    def flush(self) -> None:
        """Write the block. One that cannot be written is lost."""
        if not self._lines:
            return
        try:
            self._ring.append(bytes(self._lines))
        except OSError as error:
            self.lost += self._count
            self.start_lost = self.start_lost or self._has_start
            problem = f"the history cannot be written: {error.strerror}"
            if problem != self.problem:
                self.problem = problem
                _log.error("%s; the agent works without it", problem)
        else:
            self.problem = ""
        self._lines.clear()
        self._count = 0
        self._has_start = False


class HistoryFiles:
    """Writes the history of one run into *data_dir*. No method raises an ``OSError``.

    ``hours`` is what the HTML page shows of it.

    :param wall_ns: returns the time of day (ns since 1970) of a time of CLOCK_MONOTONIC.
    """

    def __init__(
        self, data_dir: Path, config: HistoryConfig, wall_ns: Callable[[int], int]
    ) -> None:
        directory = data_dir / DIRECTORY
        of_moments = config.max_bytes // _MOMENTS_PART
        self.moments = _Stream(MOMENTS, directory, of_moments, _MOMENT_NS)
        self.snapshots = _Stream(
            SNAPSHOTS, directory, config.max_bytes - of_moments, config.interval_ns
        )
        self._interval_ns = config.interval_ns
        self._wall_ns = wall_ns
        self._builder = MomentBuilder()
        self._thinner = SnapshotThinner()
        self.hours = Hours(_PAGE_FIRST_NS, _PAGE_BUCKETS, widest_ns=_QUIET_NS)
        self._view = MomentView(self.hours)
        self._directory = directory
        self._last: Tick | None = None
        # The latest snapshot of which no moment was made.
        self._pending: Snapshot | None = None
        self._last_moment_ns = self._last_shown_ns = 0
        self._add_s = 0.0
        self._new_run = self._new_planner = True

    @property
    def cut_cpu_s(self) -> float:
        """What enforcing would have taken at most, in CPU seconds; grows in observe mode."""
        return self._builder.cut_cpu_s

    @property
    def problem(self) -> str:
        """Why nothing can be written now, or empty."""
        return self.moments.problem or self.snapshots.problem

    def recall(self, now_ns: int) -> None:
        """Fill ``hours`` with what earlier runs left, before the first tick is added."""
        since_ns = self._wall_ns(now_ns) - _PAGE_BUCKETS * _QUIET_NS
        with contextlib.suppress(OSError):  # there is none yet, or it cannot be written either
            recall(self._view, self._directory, since_ns)

    def add(self, tick: Tick) -> None:
        """Take the next tick; samples, blame and links of its snapshot are not needed."""
        began_s = time.thread_time()
        if tick.anew:
            self._builder.restart()
            self._new_planner = True
            self.snapshots.flush()
        self._builder.add(
            tick.snapshot,
            tick.plan,
            tick.outcomes,
            tick.in_force,
            tick.workloads,
            tick.settings.mode,
        )
        self._last = tick
        self._add_s += time.thread_time() - began_s

    def write(self, latest: Snapshot) -> None:
        """Make the records that are due; *latest* is the whole snapshot of the last tick."""
        if self._last is not None:
            began_s = time.thread_time()
            self._write_moment(self._last, latest, closing=False)
            between_s = time.thread_time()
            self.moments.charge(latest.time_ns, between_s - began_s + self._add_s)
            self._add_s = 0.0
            self._write_snapshot(self._last, latest)
            self.snapshots.charge(latest.time_ns, time.thread_time() - between_s)

    def close(self, latest: Snapshot | None, now_ns: int) -> None:
        """Write what is left, and that the run ended in order at *now_ns*, with knobs restored."""
        if self._last is None:
            return
        latest = latest or self._pending
        if latest is not None:
            self._write_moment(self._last, latest, closing=True)
        wall_ns = self._wall_ns(now_ns)
        if self.moments.is_empty:
            self.moments.begin(self._head(self._last), now_ns, wall_ns)
        self.moments.add(Stop(time_ns=now_ns), wall_ns)
        self.moments.flush()
        self.snapshots.flush()

    def _write_moment(self, tick: Tick, latest: Snapshot, *, closing: bool) -> None:
        stream, now_ns = self.moments, latest.time_ns
        quiet = not self._builder.eventful and now_ns - self._last_moment_ns < _QUIET_NS
        self._pending = latest
        if closing or (stream.is_paced(now_ns) and not quiet):
            wall_ns = self._wall_ns(now_ns)
            if stream.is_empty:
                stream.begin(self._head(tick), now_ns, wall_ns)
            if self._new_run:
                stream.add(self._start(tick, new_run=True), wall_ns)
                self._new_run = False
            elif stream.start_lost:
                # The names of the workloads were lost with it.
                start = replace(self._start(tick, new_run=True), workloads=tick.workloads)
                stream.add(start, wall_ns)
            moment = self._builder.build(latest, tick.plan, tick.settings.mode)
            stream.add(moment, wall_ns)
            self._view.set_workloads(tick.workloads)
            self._view.show(moment, wall_ns)
            self._last_moment_ns = now_ns
            self._last_shown_ns = now_ns
            self._pending = None
            stream.pace(now_ns)
        elif quiet and now_ns - self._last_shown_ns >= self.hours.width_ns:
            # Not written. The page of a young agent has a point for it all the same.
            use_cpus = self._builder.use_cpus(latest)
            self._view.show_quiet(tick.plan, self._wall_ns(now_ns), use_cpus)
            self._last_shown_ns = now_ns
        stream.flush_if_due(now_ns)

    def _write_snapshot(self, tick: Tick, latest: Snapshot) -> None:
        stream, now_ns = self.snapshots, latest.time_ns
        if stream.is_paced(now_ns):
            wall_ns = self._wall_ns(now_ns)
            if stream.is_empty:
                stream.begin(None, now_ns, wall_ns)
                new_run = self._new_planner or stream.start_lost
                stream.add(self._start(tick, new_run=new_run), wall_ns)
                self._new_planner = False
                self._thinner.begin_block()
            entry = self._thinner.entry(latest, tick.plan, tick.settings, tick.workloads)
            stream.add(entry, wall_ns)
            stream.pace(now_ns)
        stream.flush_if_due(now_ns)

    def _start(self, tick: Tick, *, new_run: bool = False) -> Start:
        return Start(
            version=VERSION,
            boot_id=boot_id(),
            mode=tick.settings.mode,
            new_run=new_run,
            interval_ns=self._interval_ns,
        )

    def _head(self, tick: Tick) -> Start:
        """Return the first line of a file: what a reader needs to know of the files before it."""
        held, asked = self._builder.held, self._builder.asked
        start = self._start(tick)
        return replace(start, workloads=tick.workloads, writes=held, asked=asked)
