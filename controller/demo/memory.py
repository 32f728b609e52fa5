# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The memory phases: a service that needs more memory beside jobs that take all they can get.

A cgroup with a limit stands for the node. The service uses more than it requested, as services on
an overcommitted node do, so kubelet would give it an oom_score_adj of 980. The jobs have 1000, and
yet the kernel ends the service first: it is the largest process.
"""

from collections.abc import Callable
from pathlib import Path
import random
import time

from controller.core.units import MIB
from controller.demo.cgroups import DemoError
from controller.demo.grower import Grower
from controller.demo.results import MemoryRun
from controller.demo.session import Session
from controller.host.memory import MemoryHierarchy

__all__ = ("DIRECTORY", "missing_memory", "run_memory")

DIRECTORY = "memory"
_SERVICE, _BATCH = f"{DIRECTORY}/web", f"{DIRECTORY}/batch"
_JOBS = tuple(f"{_BATCH}/{name}" for name in ("one", "two", "three"))
_CAPACITY_MIB, _MARGIN_MIB = 300, 24
# What the service holds at first, and what it needs in the end, in about three seconds.
_FIRST_MIB, _MOST_MIB, _PAUSE_S = 150, 200, 0.05
_SERVICE_SCORE, _JOB_SCORE = 980, 1000
# Pauses of a job after each MiB.
_JOB_PAUSES_S = (0.005, 0.02)
# With all its memory for so long, the service has lived. Only a machine that hangs takes longer
# than the last figure.
_LIVED_S, _WITHIN_S = 2.0, 60.0
_POLL_S = 0.05
_MEMINFO = Path("/proc/meminfo")


def missing_memory(memory: MemoryHierarchy, meminfo: Path = _MEMINFO) -> str | None:
    """Return why the phases cannot run on this host; ``None``: they can."""
    if memory.mount is None:
        return "the memory controller is not mounted"
    control = memory.mount / "cgroup.subtree_control"
    if memory.version == "v2" and "memory" not in control.read_text().split():
        return f"the memory controller is off in {control}"
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    if int(lines["SwapTotal"].split()[0]):
        return "swap is on, so that nothing is ended for want of memory"
    return None


def run_memory(
    session: Session, memory: MemoryHierarchy, report_progress: Callable[[str], None]
) -> tuple[MemoryRun, ...]:
    """Run the phase unmanaged and managed; return both results.

    :raises DemoError: a program does not start, or the agent ends.
    """
    assert memory.mount is not None
    cgroups = session.cgroups
    cgroups.add((DIRECTORY, _SERVICE, _BATCH, *_JOBS))
    parent = memory.mount / cgroups.path[1:] / DIRECTORY
    name = "memory.max" if memory.version == "v2" else "memory.limit_in_bytes"
    try:
        (parent / name).write_text(str(_CAPACITY_MIB * MIB))
    except OSError as error:
        raise DemoError(f"cannot limit {parent}: {error.strerror}") from error
    return tuple(_Phase(session, mode, report_progress).run() for mode in ("observe", "enforce"))


class _Phase:
    """One phase, with the agent in *mode*."""

    def __init__(self, session: Session, mode: str, report_progress: Callable[[str], None]) -> None:
        self._session, self._mode = session, mode
        self._report_progress = report_progress
        self._chance = random.Random(1)  # noqa: S311 - pauses, not secrets
        self._jobs: dict[str, Grower] = {}
        self._ended = 0
        self._whole_s = 0.0

    def run(self) -> MemoryRun:
        self._session.start_agent(
            self._mode,
            service=_SERVICE,
            jobs=f"{_BATCH}/*",
            more={
                "memory": {"capacity": f"{_CAPACITY_MIB}MiB", "margin": f"{_MARGIN_MIB}MiB"},
                "eviction": {"standalone": "kill", "per_hour": 60, "cool_down": "10s"},
            },
        )
        service = self._start(_SERVICE, _SERVICE_SCORE)
        try:
            service.grow(_FIRST_MIB, 0)
            self._wait(lambda: service.held_mib >= _FIRST_MIB or service.code is not None)
            began_s = time.monotonic()
            service.grow(_MOST_MIB, _PAUSE_S)
            self._wait(lambda: self._has_ended(service))
            return MemoryRun(
                mode=self._mode,
                lived=service.code is None,
                seconds=time.monotonic() - began_s,
                held_mib=service.held_mib,
                needed_mib=_MOST_MIB,
                jobs_ended=self._ended,
            )
        finally:
            for each in (service, *self._jobs.values()):
                each.end()
            self._session.stop_agent()

    def _start(self, name: str, score: int) -> Grower:
        return Grower(score, self._session.cgroups.directories(name))

    def _has_ended(self, service: Grower) -> bool:
        """Keep the jobs running; return whether the service ended, or lived for long enough."""
        for name in _JOBS:
            job = self._jobs.get(name)
            if job is not None and job.code is None:
                continue
            if job is not None:
                self._ended += 1
                job.end()
            job = self._jobs[name] = self._start(name, _JOB_SCORE)
            job.grow(_CAPACITY_MIB * 10, self._chance.uniform(*_JOB_PAUSES_S))
        now_s = time.monotonic()
        if service.held_mib < _MOST_MIB:
            self._whole_s = now_s
        return service.code is not None or now_s - self._whole_s >= _LIVED_S

    def _wait(self, ended: Callable[[], bool]) -> None:
        stop_s = time.monotonic() + _WITHIN_S
        while not ended():
            self._session.check()
            if time.monotonic() > stop_s:
                raise DemoError("the memory phase did not end: the machine is too busy")
            self._report_progress(f"memory {self._mode}  {self._ended} jobs ended")
            time.sleep(_POLL_S)
