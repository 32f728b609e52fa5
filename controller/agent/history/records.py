# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The records of the history, and their lines.

The history has two streams of lines, each in a ring of files below ``data_dir/history``:

- ``moments``: what was decided, written and evicted, one line for each second in which something
  was, and one a minute otherwise; a ``start`` and a ``stop`` for each run of the agent.
- ``snapshots``: entries of a recording (``agent.recording``), thinned, for a replay.

A line is ``{"wall_ns":N,"KIND":RECORD}`` with the time of day in ns since 1970. The times in
records are CLOCK_MONOTONIC, which starts again at every boot.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
import json
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from controller.agent.recording import Entry
from controller.core.decision import (
    Cause,
    Demand,
    Eviction,
    LoopReport,
    Outcome,
    RungReport,
    SlowBecause,
    Verdict,
)
from controller.core.model import (
    CgroupId,
    Channel,
    EvictionAnswer,
    IndicatorName,
    Knob,
    KnobValue,
    Mode,
    Pause,
    Target,
    Workload,
)
from controller.host.names import utf8

__all__ = (
    "MOMENTS",
    "SNAPSHOTS",
    "VERSION",
    "Asked",
    "Foreign",
    "HeldSince",
    "Line",
    "Moment",
    "SlowTime",
    "Start",
    "Stop",
    "Suffered",
    "Use",
    "Write",
    "decode",
    "encode",
)

# The version of the format; a reader skips the lines after a start with a newer one.
VERSION = 1
MOMENTS, SNAPSHOTS = "moments", "snapshots"


class Write(NamedTuple):
    """A knob that was written (in observe mode: that would have been), the last time in a moment.

    ``before`` is the value before the moment. ``held``: the agent holds the knob after it.
    """

    target: Target
    knob: Knob
    before: KnobValue
    value: KnobValue
    reason: str
    held: bool


class Asked(NamedTuple):
    """What asked for the writes with ``reason``: a channel, and the loop that decided on it."""

    reason: str
    channel: Channel
    service: str | None
    indicator: IndicatorName | None


class HeldSince(NamedTuple):
    """When the agent began to hold a knob, within a moment; CLOCK_MONOTONIC."""

    target: Target
    knob: Knob
    since_ns: int


class Suffered(NamedTuple):
    """How long a service suffered in a moment, in ns; ``state`` is as in ``Suffers``.

    ``limited``: a limit of best-effort work was in force (in observe mode: would have been).
    """

    service: str
    channel: Channel
    state: str
    limited: bool
    time_ns: int


class SlowTime(NamedTuple):
    """For how long a service was slow for one cause in a moment, in ns; see ``SlowService``."""

    service: str
    because: SlowBecause
    name: str
    evidence: str
    time_ns: int


class Foreign(NamedTuple):
    """A knob that the agent held at ``ours`` and another program changed to ``value``."""

    target: Target
    knob: Knob
    ours: KnobValue
    value: KnobValue


class Use(NamedTuple):
    """CPU use of a best-effort workload since the last moment, in CPUs; ``granted``: its quota."""

    cgroup: CgroupId
    cpus: float
    granted: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The first line of a file, of a block of snapshots, and of every run (``new_run``).

    A run holds no knob at its start: those of an earlier one were restored. ``writes`` are the
    knobs that are held where a file begins within a run, each since its original value was
    replaced; ``asked`` says for whom. ``interval_ns`` is the time between two
    snapshots.
    """

    version: int
    boot_id: str
    mode: Mode
    new_run: bool = False
    interval_ns: int = 0
    workloads: tuple[Workload, ...] = ()
    writes: tuple[Write, ...] = ()
    asked: tuple[Asked, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The agent ended in order, and restored every knob."""

    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What happened since the last moment, and the state after it.

    ``anew``: every knob was restored before it, because a tick was abandoned, which also made a new
    planner, or because ``mode`` was changed. ``loops`` are those that decide the demand of their
    channel, or whose service suffers. ``worst`` are loops of earlier ticks of the moment with a
    larger raw value. ``slow`` has the causes for which services were slow.
    ``suffered`` sums the ticks of the moment, which stand for ``ran_ns``
    (``None``: of an agent that did not count). ``writes`` are the changes of what is in force, as
    read back; ``asked`` says for whom, and ``since`` when new knobs began to be held. ``refused``
    are writes that the kernel refused. ``uses`` are those of the limited and of the culprits, the
    largest first; ``be_use_cpus`` is that of all best-effort work (``None``: not measured),
    ``cut_cpus`` what all limited workloads used beyond
    their quotas and those of their parents, which is above 0 only in observe mode, where nothing
    limits them. ``workloads``: the list, if it changed. ``pause`` is in force at the end of the
    moment. ``core_overlap_ratio`` is the snapshot's at its end. ``dropped`` counts texts and writes
    that were too many for the moment.
    """

    time_ns: int
    mode: Mode
    anew: bool = False
    demands: tuple[Demand, ...] = ()
    loops: tuple[LoopReport, ...] = ()
    worst: tuple[LoopReport, ...] = ()
    suffered: tuple[Suffered, ...] | None = None
    slow: tuple[SlowTime, ...] = ()
    ran_ns: int | None = None
    causes: tuple[Cause, ...] = ()
    rungs: tuple[RungReport, ...] = ()
    writes: tuple[Write, ...] = ()
    asked: tuple[Asked, ...] = ()
    since: tuple[HeldSince, ...] = ()
    foreign: tuple[Foreign, ...] = ()
    refused: tuple[Outcome, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    answers: tuple[EvictionAnswer, ...] = ()
    uses: tuple[Use, ...] = ()
    be_use_cpus: float | None = None
    cut_cpus: float = 0.0
    workloads: tuple[Workload, ...] | None = None
    pause: Pause | None = None
    core_overlap_ratio: float | None = None
    dropped: int = 0


Record = Start | Stop | Moment | Entry


class Line(NamedTuple):
    """A record with the time of day of its line."""

    wall_ns: int
    record: Record


_KINDS = {"start": Start, "stop": Stop, "moment": Moment, "entry": Entry}


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    # With the first use, which is not at the agent's start.
    return TypeAdapter(_KINDS[kind])


def encode(wall_ns: int, record: Record) -> bytes:
    """Return the line of *record*, with its line break; fields at their defaults are left out."""
    kind = next(kind for kind, of in _KINDS.items() if isinstance(record, of))
    adapter = _adapter(kind)
    try:
        data = adapter.dump_json(record, exclude_defaults=True)
    except PydanticSerializationError:  # a path that is not UTF-8
        plain = adapter.dump_python(record, mode="json", exclude_defaults=True)
        data = utf8(json.dumps(plain, ensure_ascii=False))
    return b'{"wall_ns":%d,"%s":%s}\n' % (wall_ns, kind.encode(), data)


def decode(lines: Iterator[bytes]) -> Iterator[Line | str]:
    """Yield the records of *lines*; for what cannot be read, a text that says why.

    The lines of a run of a newer version are one such text.
    """
    skipping = False
    for line in lines:
        head, _, rest = line.partition(b',"')
        kind, _, data = rest.partition(b'":')
        try:
            wall_ns = _time(head.removeprefix(b'{"wall_ns":'))
            if kind == b"start":
                version = json.loads(data[:-1])["version"]
                newer = version > VERSION
                if newer and not skipping:
                    yield f"written by a newer sweetpoint (version {version} of the format)"
                skipping = newer
            if not skipping:
                yield Line(wall_ns, _adapter(kind.decode()).validate_json(data[:-1]))
        except (ValueError, KeyError, TypeError, ValidationError, RecursionError) as error:
            yield f"not a record: {str(error).splitlines()[0][:200]}"


def _time(text: bytes) -> int:
    time_ns = int(text)
    if not 0 <= time_ns < 2**62:  # a year that has a calendar
        raise ValueError("not a time")
    return time_ns
