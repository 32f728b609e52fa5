# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The phases of the demonstration on a real host.

nginx and the load generator run through all phases. Each phase has an agent and at most one
best-effort job. The agent runs in observe mode in the unmanaged phases, so that run-queue latency
is measured by the same probe and at the same cost in every phase; in the managed phases it runs
in enforce mode.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
import json
from pathlib import Path
import time
from typing import Any

from controller.core.units import NS_PER_SEC
from controller.demo.agent import parse_status
from controller.demo.cgroups import DemoError
from controller.demo.programs import START_WITHIN_S, BestEffort, Process, start, start_nginx
from controller.demo.results import LoadSecond, Phase, Sample, Work
from controller.demo.session import Session
from controller.host.python_child import python_child
from controller.probes.steal import StealMeter

__all__ = ("Driver", "PhaseSpec", "phase_plan")

LS = "ls"
POLL_S = 0.2
WARM_UP_S = 1.0
# Pause after a phase in which the last answers arrive.
SETTLE_S = 1.5
# stress-ng writes its output file after all its workers have ended, which are squeezed.
OUTPUT_WITHIN_S = 15.0
LOOP_SWEET_POINTS = ("2ms", "8ms", "2ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSpec:
    """A phase to run: mode of the agent, best-effort job, length.

    ``against`` is the key of the phase to compare with. With ``loop_sweet_point`` the agent has
    this sweet point and the quota as its only knob.
    """

    key: str
    title: str
    mode: str
    seconds: float
    job: BestEffort | None = None
    against: str | None = None
    loop_sweet_point: str | None = None


def phase_plan(
    jobs: Sequence[BestEffort], seconds: float, rounds: int, loop_seconds: float | None
) -> list[PhaseSpec]:
    """Return the phases in order.

    The sequence is repeated *rounds* times, so that the repetitions of a phase interleave with
    the other phases. The phases of the quota loop follow; ``None``: without them.
    """
    one = [PhaseSpec(key="alone", title="alone", mode="observe", seconds=seconds)]
    for job in jobs:
        plain = f"{job.name} unmanaged"
        one.append(PhaseSpec(key=plain, title=plain, mode="observe", seconds=seconds, job=job))
        key = f"{job.name} managed"
        one.append(
            PhaseSpec(key=key, title=key, mode="enforce", seconds=seconds, job=job, against=plain)
        )
    loops = [
        PhaseSpec(
            key=f"loop {number}",
            title=f"quota loop only, {sweet_point}",
            mode="enforce",
            seconds=loop_seconds,
            job=jobs[-1],
            loop_sweet_point=sweet_point,
        )
        for number, sweet_point in enumerate(LOOP_SWEET_POINTS if loop_seconds else (), 1)
        if loop_seconds is not None
    ]
    return one * rounds + loops


class Driver:
    """Runs phases in a session; *report_progress* gets one line of text five times a second."""

    def __init__(
        self, session: Session, rate: float, report_progress: Callable[[str], None]
    ) -> None:
        self._session = session
        self._rate = rate
        self._report_progress = report_progress
        self._load = _LoadFile(session.home / "load.jsonl")
        self._job: tuple[BestEffort, Process, Path] | None = None

    def start(self, jobs: Sequence[BestEffort]) -> Mapping[str, Any]:
        """Create the cgroups, start nginx and the generator; return the generator's parameters.

        :raises DemoError: a program does not start.
        """
        cgroups, home = self._session.cgroups, self._session.home
        cgroups.create((LS, *(job.cgroup for job in jobs)))
        nginx, port = start_nginx(home, lambda: cgroups.join(LS))
        self._session.add(nginx)
        command = python_child("controller.demo.loadgen", "--port", str(port))
        command += ["--path", "page", "--rate", str(self._rate)]
        command += ["--output", str(self._load.path)]
        self._session.add(start("loadgen", command, home))
        self._sleep(WARM_UP_S)
        deadline_s = time.monotonic() + START_WITHIN_S
        while not (parameters := self._load.parameters()):
            if time.monotonic() >= deadline_s:
                raise DemoError("the load generator did not start")
            self._sleep(POLL_S)
        return parameters

    def run(self, spec: PhaseSpec, *, keep_job: bool) -> Phase:
        """Run one phase; with *keep_job* its job continues in the next phase.

        :raises DemoError: a program ended during the phase.
        """
        self._prepare_agent(spec)
        continued = self._job is not None
        if spec.job is not None and not continued:
            self._start_job(spec.job)
        start_s = time.monotonic()
        samples = list(self._sample_phase(spec, start_s))
        elapsed_s = time.monotonic() - start_s
        work = None
        if not keep_job and self._job is not None:
            work = self._stop_job(elapsed_s, whole=not continued)
        self._sleep(SETTLE_S)
        return Phase(
            key=spec.key,
            title=spec.title,
            mode=spec.mode,
            seconds=spec.seconds,
            against=spec.against,
            load=tuple(self._load.between(start_s, start_s + spec.seconds)),
            samples=tuple(samples),
            work=work,
        )

    def _prepare_agent(self, spec: PhaseSpec) -> None:
        if spec.loop_sweet_point is None:
            self._session.start_agent(spec.mode)
        elif self._job is None:
            self._session.start_agent(spec.mode, sweet_point=spec.loop_sweet_point, quota_only=True)
        elif self._session.agent is not None:
            self._session.agent.set_sweet_point(spec.loop_sweet_point)

    def _sample_phase(self, spec: PhaseSpec, start_s: float) -> Iterator[Sample]:
        next_s = start_s
        while (now_s := time.monotonic()) < start_s + spec.seconds:
            self._session.check()
            sample = self._sample(spec, start_s)
            self._report_progress(_progress(spec, now_s - start_s, sample))
            yield sample
            next_s = max(next_s + POLL_S, time.monotonic())
            time.sleep(next_s - time.monotonic() if next_s > time.monotonic() else 0)

    def _sample(self, spec: PhaseSpec, start_s: float) -> Sample:
        agent, cgroups = self._session.agent, self._session.cgroups
        status = agent.status() if agent is not None else None
        return Sample(
            time_s=time.monotonic() - start_s,
            **(parse_status(status, f"{cgroups.path}/be-") if status else {}),
            ls_oncpu_s=cgroups.oncpu_ns(LS) / NS_PER_SEC,
            be_oncpu_s=cgroups.oncpu_ns(spec.job.cgroup) / NS_PER_SEC if spec.job else 0.0,
            steal_s=steal_s(),
        )

    def _start_job(self, job: BestEffort) -> None:
        home = self._session.home
        output = home / f"{job.name}.account"
        output.unlink(missing_ok=True)
        process = start(
            job.name,
            job.command(output),
            home,
            join=lambda: self._session.cgroups.join(job.cgroup),
        )
        self._job = (job, self._session.add(process), output)

    def _stop_job(self, elapsed_s: float, *, whole: bool) -> Work:
        assert self._job is not None
        (job, process, output), self._job = self._job, None
        self._session.remove(process)
        process.stop(job.stop_by, OUTPUT_WITHIN_S)
        self._session.cgroups.kill(job.cgroup)
        amount = job.work(output.read_text()) if whole and output.exists() else None
        return Work(job=job.name, unit=job.unit, amount=amount, seconds=elapsed_s)

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)
        self._session.check()


class _LoadFile:
    """The output file of the load generator, read incrementally."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seconds: list[dict[str, Any]] = []
        self._parameters: dict[str, Any] = {}
        self._offset = 0

    def parameters(self) -> Mapping[str, Any]:
        """Return the first line of the file; empty before it is there."""
        self._read()
        return self._parameters

    def between(self, from_s: float, to_s: float) -> Iterator[LoadSecond]:
        """Yield the seconds that are completely between two times of CLOCK_MONOTONIC, in s."""
        self._read()
        first_s = self._parameters["start_ns"] / NS_PER_SEC
        for line in self._seconds:
            start_s = first_s + line["second"]
            if from_s <= start_s and start_s + 1 <= to_s:
                yield LoadSecond(
                    start_s=start_s - from_s,
                    latency_us=tuple(line["latency_us"]),
                    late_us=tuple(line["late_us"]),
                    queued=line["queued"],
                    errors=line["errors"],
                    timeouts=line["timeouts"],
                    generator_cpu_ns=line["cpu_ns"],
                )

    def _read(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            record = json.loads(line)
            if "second" in record:
                self._seconds.append(record)
            elif "start_ns" in record:
                self._parameters = record


def steal_s() -> float:
    """Return the steal time of this machine since boot, CPU seconds."""
    return (StealMeter().poll(now_ns=0) or 0) / NS_PER_SEC


def _progress(spec: PhaseSpec, elapsed_s: float, sample: Sample) -> str:
    text = f"{spec.title}  {elapsed_s:3.0f}/{spec.seconds:.0f} s"
    if sample.delay_p99_ms is not None:
        text += f"  run-queue p99 of arrivals {sample.delay_p99_ms:.2f} ms"
    if sample.be_quota_cpus is not None:
        text += f"  quota {sample.be_quota_cpus:.2f} CPU"
    return text
