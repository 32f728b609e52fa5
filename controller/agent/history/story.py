# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Reads moments in order and tells a story of them, as incidents: what all stories need.

That is the workloads, the runs of the agent, and the time between two moments. ``WorkloadStory``
and ``ServiceStory`` decide which moments matter.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from controller.agent.history.incidents import (
    Coverage,
    Eviction,
    Gap,
    Held,
    Incident,
    Note,
    NoteKind,
    Share,
    Squeeze,
    Suffering,
)
from controller.agent.history.records import Line, Moment, Start, Stop, Suffered, Write
from controller.core.decision import Cause
from controller.core.in_force import concerns
from controller.core.knob_comparison import is_stricter
from controller.core.model import (
    CgroupId,
    Knob,
    Mode,
    Pause,
    QosClass,
    Target,
    Workload,
)
from controller.core.units import NS_PER_SEC
from controller.telemetry.suffering import suffering

__all__ = ("ORDER", "Evictions", "Story", "held_knob")

# A longer time between two lines of a run is not observed: a line a minute is written at least.
_LONGEST_NS = 90 * NS_PER_SEC
# A part of the cause, 0 to 1, that is larger by no more than this says nothing new.
_MORE = 0.05

# Knobs that are no limit, by what a note calls them.
ORDER = {
    Knob.SCHED_IDLE: "sched-idle",
    Knob.MEMORY_MAX: "limit of memory",
    Knob.CPUSET: "set of CPUs",
}


class Story(ABC):
    """Takes the lines of the history, the oldest first; ``incidents`` are those found so far.

    ``workloads`` are the present ones, ``known`` all that were ever seen, by name. ``paused``: what
    the story is about is paused.
    """

    def __init__(self, coverage: Coverage) -> None:
        self.coverage = coverage
        self.incidents: list[Incident] = []
        self.workloads: tuple[Workload, ...] = ()
        self.names: dict[CgroupId, str] = {}
        self.known: dict[str, Workload] = {}
        self._children: Counter[tuple[str, int]] = Counter()
        self._wall_ns: int | None = None
        self._ran_ns: int | None = None
        self._stopped = False
        self._boot_id = ""
        self._mode: Mode | None = None
        self.paused = False

    def read(self, lines: Iterable[Line | str]) -> None:
        """Take all *lines* up to the end of the time that was asked for.

        The lines are in the order in which they were written. A clock that was ahead and was set
        back may be followed by lines of the time that was asked for.
        """
        ahead: tuple[Workload, ...] = ()
        for line in lines:
            if isinstance(line, str):
                self.coverage.unreadable += 1
            elif line.wall_ns > self.coverage.until_ns:
                if isinstance(line.record, Start | Moment):
                    ahead = line.record.workloads or ahead
            else:
                if ahead:
                    self._set_workloads(ahead)
                    ahead = ()
                self._feed(line)
        self.close(None, "")
        for incident in self.incidents:
            if incident.ended_ns is not None:  # a clock that was set back may have ended it before
                incident.ended_ns = max(incident.began_ns, incident.ended_ns)
        self.incidents = [
            each
            for each in self.incidents
            if each.ended_ns is None or each.ended_ns >= self.coverage.since_ns
        ]
        self.incidents.sort(key=lambda each: each.began_ns)

    def _feed(self, line: Line) -> None:
        wall_ns, record = line
        if isinstance(record, Start):
            self._take_start(wall_ns, record)
        elif isinstance(record, Stop):
            self.close(wall_ns, "the agent was stopped, and restored every knob")
            self._stopped = True
        elif isinstance(record, Moment):
            if record.workloads is not None:
                self._set_workloads(record.workloads)
            if record.anew:
                self.close(wall_ns, f"{self._why_anew(record)}, which restored every knob")
            self._observe(wall_ns)
            self.coverage.dropped += record.dropped
            self.take(wall_ns, record)
            self._mode = record.mode
        self._wall_ns = wall_ns
        if not isinstance(record, Start):
            self._ran_ns = wall_ns

    def _why_anew(self, moment: Moment) -> str:
        if self._mode not in (None, moment.mode):
            return f"a reload with mode {moment.mode}"
        return "an error in the agent"

    def _take_start(self, wall_ns: int, start: Start) -> None:
        if start.workloads:
            self._set_workloads(start.workloads)
        if start.new_run:
            if self._ran_ns is not None:
                self._note_gap(self._ran_ns, wall_ns, start)
            self._wall_ns = None
            self._stopped = False
        elif self._wall_ns is None:
            # What the files before this one told: these knobs were held then.
            self.begin(wall_ns, start)
        self._boot_id = start.boot_id
        self._mode = start.mode

    def _note_gap(self, since_ns: int, until_ns: int, start: Start) -> None:
        if start.boot_id != self._boot_id:
            reason = "the machine was booted"
        elif self._stopped:
            reason = "the agent was stopped"
        else:
            reason = "the agent ended without notice (killed, or crashed)"
        self.close(since_ns, f"{reason}, and every knob was restored")
        self.incidents.append(Gap(began_ns=since_ns, ended_ns=until_ns, reason=reason))

    def _observe(self, wall_ns: int) -> None:
        coverage = self.coverage
        if wall_ns < coverage.since_ns:
            return
        coverage.first_ns = coverage.first_ns or wall_ns
        coverage.last_ns = wall_ns
        coverage.observed_ns += self.elapsed_ns(wall_ns)

    def elapsed_ns(self, wall_ns: int) -> int:
        """Return the time since the last moment of the run, of the time that was asked for.

        0: there was none, or it is too long ago to be followed by this one.
        """
        if self._wall_ns is None:
            return 0
        elapsed_ns = wall_ns - max(self._wall_ns, self.coverage.since_ns)
        return elapsed_ns if 0 < elapsed_ns <= _LONGEST_NS else 0

    def suffered(self, moment: Moment, elapsed_ns: int) -> Iterator[Suffered]:
        """Yield how long each service suffered in the *elapsed_ns* that *moment* stands for."""
        if moment.suffered is None:  # of an agent that did not count
            limited = any(each.applied > 0 for each in moment.demands)
            for (service, channel), found in suffering(moment.loops, moment.demands).items():
                yield Suffered(service, channel, found.state, limited, elapsed_ns)
        else:
            for each in moment.suffered:
                if elapsed_ns:
                    yield each._replace(time_ns=min(each.time_ns, elapsed_ns))

    def limits(self, write: Write) -> bool:
        """Return whether *write* is of a knob that limits best-effort work."""
        return write.knob not in ORDER and any(
            concerns(write.target, write.knob, each)
            for each in self.workloads
            if each.qos is QosClass.BE
        )

    def take_pause(
        self, wall_ns: int, pause: Pause | None, covers: Callable[[Pause], bool]
    ) -> None:
        """Note the begin and the end of a pause that *covers* what the story is about."""
        paused = pause is not None and covers(pause)
        if paused is not self.paused:
            self.paused = paused
            text = "begins: it is left alone, and its knobs are restored" if paused else "ends"
            note = Note(began_ns=wall_ns, ended_ns=wall_ns, event=NoteKind.PAUSE, text=text)
            self.incidents.append(note)

    def shares(self, cause: Cause) -> tuple[Share, ...]:
        """Return the culprits of *cause* by name."""
        return tuple(
            Share(self.names.get(each.cgroup, f"cgroup {each.cgroup.id}"), round(each.share, 4))
            for each in cause.culprits
        )

    def take_cause(
        self, incident: Squeeze | Suffering, moment: Moment, service: str | None
    ) -> bool:
        """Take what makes *service* suffer in *incident*; return whether that is new.

        The first moment counts in which best-effort work has about its largest part: before that
        the evidence is not complete, and later it is that of a squeeze.
        """
        for cause in moment.causes:
            if (cause.channel, cause.service) == (incident.channel, service):
                share, before = cause.be_share, incident.be_share
                if share is not None and (before is None or share > before + _MORE):
                    incident.be_share = share
                    incident.culprits = self.shares(cause) or incident.culprits
                    return True
        return False

    def is_parent(self, target: Target) -> bool:
        """Return whether *target* is a cgroup whose quota limits several workloads together."""
        return target[1:3] in self._children

    def take_write(self, held: Held, write: Write) -> None:
        """Take a later *write* of the knob into *held*, or the first one."""
        held.last = write.value
        if is_stricter(write.knob, write.value, held.strictest):
            held.strictest = write.value
        if write.knob is Knob.CPU_QUOTA:
            held.shared_by = self._children.get(write.target[1:3])

    def _set_workloads(self, workloads: tuple[Workload, ...]) -> None:
        self.workloads = workloads
        self._children = Counter(each.quota_at[1:3] for each in workloads if each.quota_at)
        self.names.update((each.cgroup, each.name) for each in workloads)
        self.known.update((each.name, each) for each in workloads)
        self.workloads_changed()

    def workloads_changed(self) -> None:  # noqa: B027 - not every story needs it
        """Take a new list of workloads."""

    # Not every story needs this one either.
    def begin(self, wall_ns: int, start: Start) -> None:  # noqa: B027
        """Take the knobs of *start* that were held before the first line that was read."""

    @abstractmethod
    def take(self, wall_ns: int, moment: Moment) -> None:
        """Take a moment."""

    @abstractmethod
    def close(self, wall_ns: int | None, reason: str) -> None:
        """Close what lasts, because the agent ended; ``None``: it goes on."""


class Evictions:
    """The evictions that concern one story, and what came of them."""

    def __init__(self) -> None:
        self._open: dict[CgroupId, Eviction] = {}

    def take(
        self, wall_ns: int, moment: Moment, name: str | None, service: str | None
    ) -> Iterator[Eviction]:
        """Yield new evictions of the workload *name*, or for *service*; complete earlier ones."""
        if moment.workloads is not None:
            present = {each.whole for each in moment.workloads}
            for cgroup, eviction in self._open.items():
                if cgroup not in present and eviction.left_after_ns is None:
                    eviction.left_after_ns = max(0, wall_ns - eviction.began_ns)
        for each in moment.evictions:
            if each.name == name or each.service == service:
                eviction = Eviction(
                    began_ns=wall_ns,
                    ended_ns=wall_ns,
                    mode=moment.mode,
                    workload=each.name,
                    channel=each.channel,
                    service=each.service,
                    reason=each.reason,
                )
                self._open[each.cgroup] = eviction
                yield eviction
        for answer in moment.answers:
            if answer.cgroup in self._open:
                text = f"{answer.result}: {answer.message}" if answer.message else answer.result
                eviction = self._open[answer.cgroup]
                eviction.answers.append(text)
                eviction.result = answer.result
        for verdict in moment.verdicts:
            if verdict.text.startswith("its eviction"):
                for eviction in self._open.values():
                    if eviction.workload == verdict.subject:
                        eviction.effect = verdict.text
                        eviction.ended_ns = wall_ns


def held_knob(write: Write) -> Held:
    """Return the record of a knob that begins with *write*."""
    return Held(write.knob, write.target.path, write.before, write.value, write.value, write.reason)
