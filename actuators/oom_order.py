# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Actuator of oom_score_adj: the order in which the kernel ends processes for want of memory.

The target is the cgroup of a best-effort workload, with the scope ``oom``. Values are ``own`` and
``1000``. Writing ``1000`` gives every process in the cgroup an oom_score_adj of 1000, the largest,
which children inherit. Writing ``own`` gives each process that still has 1000 what it had before. A
process that changed its value itself is left alone, in both directions.

The values from before are in a registry on disk, which has the format of the journal: one record
per cgroup, stored before the first process is written, and again before a process with another
value is. A child that nobody has seen yet is not in it, and gets the value of the nearest ancestor
that is. Without such an ancestor it gets the largest value of the cgroup, so that no process ends
up below what it had.
"""

from collections.abc import Iterable, Mapping
import contextlib
import errno
import os
from pathlib import Path
from typing import NamedTuple

from actuators.base import GoneError, Phase, RefusedError, Trace, gone, no_trace, refused
from actuators.journal import Journal, JournalError, Record
from actuators.kernfs import Cgroup
from actuators.oom_scores import OpenProcess, Originals, Process
from controller.core.decision import Action, Outcome
from controller.core.model import Knob, KnobValue, Target, TargetKind
from controller.host.facts import CgroupLayout

__all__ = ("HIGHEST", "OOM", "OWN", "OomOrder")

OOM = "oom"
OWN = KnobValue("own")
HIGHEST = KnobValue("1000")
_HIGHEST = 1000
# kubelet gives it to the sandbox of a pod, and less to what must never be ended
# (pkg/kubelet/qos/policy.go, and defaultSandboxOOMAdj of containerd).
_NEVER = -998
_INIT = 1
# Processes that are made during a pass are found by the next one.
_PASSES = 5


class _Seen(NamedTuple):
    """A process of a cgroup: its start, and what it had; ``None``: it is left alone."""

    start: int
    original: int | None


class OomOrder:
    """The actuator of ``Knob.OOM_SCORE_ADJ``; implements ``base.Actuator``.

    ``raised`` and ``failed`` count processes since the start.

    :param layout: the hierarchy with the cgroups of the workloads.
    :param state_dir: the state directory; the values from before are in ``oom`` below it.
    :raises JournalError: that directory exists and cannot be used.
    """

    knob = Knob.OOM_SCORE_ADJ
    checks_ancestors = False

    def __init__(self, layout: CgroupLayout, state_dir: Path) -> None:
        self._layout = layout
        self._directory = state_dir / "oom"
        self._registry: Journal | None = None
        if self._directory.is_dir():
            self._registry = Journal(self._directory)
        # By kernfs id of the cgroup, then by pid; and those of them that are to be raised.
        self._seen: dict[int, dict[int, _Seen]] = {}
        self._pending: dict[int, list[int]] = {}
        # Those that were being prepared at a look; at the next one they are as the others, because
        # any process may have such a name.
        self._prepared: dict[int, set[int]] = {}
        # Those that are never to be ended. They are looked at last, so that they hide no others.
        self._never: dict[int, set[int]] = {}
        self._spared = (_INIT, os.getpid(), os.getppid())
        self.raised = self.failed = 0

    @property
    def complete(self) -> bool:
        """Whether everything was on disk at the last ``renew``."""
        return self._registry is None or self._registry.complete

    def renew(self) -> bool:
        """Store again what is lost on disk; see ``Journal.renew``."""
        return self._registry is not None and self._registry.renew()

    def applies_to(self, target: Target) -> bool:
        """Pure: return whether *target* is a cgroup whose processes are ordered."""
        return target.kind is TargetKind.CGROUP and target.scope == OOM

    def unsupported_reason(self) -> str | None:
        """Return ``None``: every kernel has it."""
        return None

    def read(self, target: Target) -> KnobValue:
        """Return ``1000`` where the values from before are stored, otherwise ``own``.

        :raises GoneError: the cgroup no longer exists.
        """
        self._path(target)
        return OWN if self._record(target) is None else HIGHEST

    def apply(self, action: Action, trace: Trace = no_trace) -> Outcome:
        """Raise the processes of the cgroup that were seen, or give back what all of them had."""
        target = action.target
        if action.value not in (OWN, HIGHEST):
            raise ValueError(f"{action.value!r} is not a value of {self.knob}")
        try:
            if action.value == OWN:
                self._give_back(target, trace)
            else:
                self.raise_seen(target, trace)
        except GoneError as error:
            return gone(action, error)
        except (RefusedError, JournalError) as error:
            return refused(action, self.read(target), error.errno, str(error))
        return Outcome(action=action, applied=self.read(target))

    def intermediate_values(self, previous: KnobValue, value: KnobValue) -> tuple[KnobValue, ...]:
        """Pure: return both values; there is none between them."""
        return (previous, value)

    def matches(self, expected: KnobValue, found: KnobValue) -> bool:
        """Pure: return whether the values are equal."""
        return expected == found

    def phase(self, previous: KnobValue, value: KnobValue) -> Phase:
        """Pure: at any time."""
        return Phase.ANY

    def look(self, target: Target, most: int) -> int:
        """Look at up to *most* processes of a cgroup that were not seen yet; return how many.

        Those that are never to be ended do not count again.
        ``lacks`` tells then whether some of them are to be raised. A process that was moved out of
        the cgroup gets back what it had.

        :raises GoneError: the cgroup no longer exists.
        """
        pids = self._members(target)
        seen = self._seen.setdefault(target.id, {})
        record = self._record(target)
        usual = None if record is None else Originals.parse(record.original).usual
        for pid in [pid for pid in seen if pid not in pids]:
            left = seen.pop(pid)
            if record is not None:
                self._let_go(pid, left)
        # Parents mostly have smaller pids than their children.
        never = self._never.get(target.id, set()) & pids
        new = sorted(pids - seen.keys(), key=lambda pid: (pid in never, pid))[:most]
        self._never[target.id] = set(never)
        pending = self._pending.setdefault(target.id, [])
        waited = self._prepared.get(target.id, set())
        prepared = self._prepared[target.id] = waited & pids
        for pid in new:
            with contextlib.suppress(OSError), OpenProcess(pid) as process:
                (parent, start), score = process.parent_and_start(), process.score
                if score <= _NEVER:
                    self._never[target.id].add(pid)
                    continue  # it may have another value at the next look
                if pid not in waited and process.is_prepared:
                    prepared.add(pid)
                    continue
                if pid in self._spared:
                    seen[pid] = _Seen(start, None)
                elif score < _HIGHEST:
                    seen[pid] = _Seen(start, score)
                    pending.append(pid)
                elif usual is None:
                    seen[pid] = _Seen(start, _HIGHEST)  # before any process was raised
                else:
                    above = seen.get(parent)
                    inherited = usual if above is None else above.original
                    seen[pid] = _Seen(start, _HIGHEST if inherited is None else inherited)
        return sum(pid not in never for pid in new)

    def lacks(self, target: Target) -> bool:
        """Return whether processes of a cgroup that were seen are to be raised."""
        return bool(self._pending.get(target.id))

    def holds(self, target: Target) -> bool:
        """Return whether values of a cgroup are stored, so processes of it may have been raised."""
        return self._record(target) is not None

    def raise_seen(self, target: Target, trace: Trace = no_trace) -> None:
        """Raise the processes that were seen and are below 1000; their values are stored first.

        :raises JournalError: the values could not be stored; nothing was raised.
        """
        seen = self._seen.get(target.id, {})
        self._store(target, seen)
        trace("after values stored")
        for pid in self._pending.pop(target.id, ()):
            if pid in seen:
                self._raise(pid, seen[pid])
        trace("after processes raised")

    def forget(self, target: Target) -> None:
        """Forget what was seen of a cgroup that is gone, or not held any more."""
        self._seen.pop(target.id, None)
        self._pending.pop(target.id, None)
        self._prepared.pop(target.id, None)
        self._never.pop(target.id, None)

    def _raise(self, pid: int, seen: _Seen) -> None:
        try:
            with OpenProcess(pid) as process:
                if process.parent_and_start()[1] == seen.start and process.score < _HIGHEST:
                    process.score = _HIGHEST
                    self.raised += 1
        except (ProcessLookupError, FileNotFoundError):
            return  # ended
        except OSError:
            self.failed += 1

    def _store(self, target: Target, seen: Mapping[int, _Seen]) -> None:
        values = {
            Process(pid, each.start): each.original
            for pid, each in seen.items()
            if each.original is not None
        }
        record = self._record(target)
        # Not below that of before: of its processes there may be children that nobody has seen.
        least = [] if record is None else [Originals.parse(record.original).usual]
        usual = max((*least, *values.values()), default=None)
        if usual is None:
            return
        # All of them where they differ: one with the largest value may have a parent with less, and
        # its parent may end. With one value none has to be named.
        others = values if any(value != usual for value in values.values()) else {}
        text = Originals(usual, others).text
        if record is not None and record.original == text:
            return
        if self._registry is None:
            self._registry = Journal(self._directory)
        self._registry.put(Record(target, self.knob, text, OWN, HIGHEST))

    def _give_back(self, target: Target, trace: Trace) -> None:
        record = self._record(target)
        if record is None:
            return
        originals = Originals.parse(record.original)
        elsewhere = {each.pid for each in originals.others} | self._seen.get(target.id, {}).keys()
        for _ in range(_PASSES):  # a child may be made between the list and the write
            refused_by, written = self._give_back_once(target, originals, elsewhere)
            if not written:
                break
        trace("after values given back")
        if refused_by is not None:
            text = f"{target.path}: cannot write oom_score_adj: {refused_by.strerror}"
            raise RefusedError(refused_by.errno or errno.EIO, text)
        assert self._registry is not None
        self._registry.remove(record)
        self.forget(target)

    def _give_back_once(
        self, target: Target, originals: Originals, elsewhere: Iterable[int]
    ) -> tuple[OSError | None, int]:
        """Return an error of a write, and how many processes were written."""
        members = self._members(target)
        parents = {}
        for pid in members:
            with contextlib.suppress(OSError), OpenProcess(pid) as process:
                parents[pid] = process.parent_and_start()
        problem, written = None, 0
        for pid in (*members, *elsewhere):
            try:
                with OpenProcess(pid) as process:
                    start = process.parent_and_start()[1]
                    known = self._seen.get(target.id, {}).get(pid)
                    # One that was moved elsewhere is ours only if it is the same process.
                    is_ours = pid in members or (known is not None and known.start == start)
                    if not is_ours and Process(pid, start) not in originals.others:
                        continue
                    value = originals.of(Process(pid, start), {pid: (0, start), **parents})
                    if process.score == _HIGHEST != value:
                        process.score = value
                        written += 1
            except (ProcessLookupError, FileNotFoundError):
                continue  # ended
            except OSError as error:
                problem = error
        return problem, written

    def _let_go(self, pid: int, seen: _Seen) -> None:
        """Give a process that left the cgroup what it had, if it lives and still has 1000."""
        with contextlib.suppress(OSError), OpenProcess(pid) as process:
            is_same = process.parent_and_start()[1] == seen.start
            if seen.original is not None and is_same and process.score == _HIGHEST:
                process.score = seen.original

    def _record(self, target: Target) -> Record | None:
        return None if self._registry is None else self._registry.get(target, self.knob)

    def _members(self, target: Target) -> set[int]:
        """Return the processes in a cgroup and below; errors as ``look``."""
        found: set[int] = set()
        for folder, _, _ in os.walk(self._layout.mount / self._path(target)[1:]):
            with contextlib.suppress(OSError):  # removed meanwhile, or threaded
                text = (Path(folder) / "cgroup.procs").read_text(encoding="ascii")
                found.update(map(int, text.split()))
        return found - {0}  # 0 stands for a process of another PID namespace

    def _path(self, target: Target) -> str:
        """Return the present path of a cgroup; one that is gone is forgotten."""
        try:
            with Cgroup(self._layout.mount, target, renamed=True) as cgroup:
                return cgroup.path
        except GoneError:
            record = self._record(target)
            if record is not None and self._registry is not None:
                self._registry.remove(record)
            self.forget(target)
            raise
