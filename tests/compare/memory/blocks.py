# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Blocks of the comparison where memory is short: a service that grows beside a job."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
from dataclasses import dataclass
import os
from pathlib import Path
import shutil
import threading
import time

import yaml

from controller.core.units import NS_PER_SEC
from controller.demo.session import Session
from controller.host.package_data import profiles_dir
from tests.compare.blocks import window_p99_ms
from tests.compare.memory.job import HOG, READER, Job
from tests.compare.memory.node import (
    BATCH,
    CAPACITY_MIB,
    MIB,
    PODS,
    WEB,
    MemoryNode,
)
from tests.compare.memory.pages import PAGES, Pages, make_file
from tests.compare.memory.policies import POLICIES
from tests.compare.memory.record import MemoryBlock
from tests.compare.memory.redis import REDIS, Redis
from tests.compare.plan import LEARN_S
from tests.compare.services import Service, Traffic

__all__ = ("MIXES", "MemoryMix", "MemoryRunner", "grown_mib", "service_score")

# The client begins, with others at work.
_LEAD_S = 4.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMix:
    """A mix by name: a service next to *pods* pods of the kind ``job``.

    The service requests ``request_mib``, and grows from ``first_mib`` to ``most_mib`` if it can.
    ``lengthened``: its blocks are so many times longer.
    """

    name: str
    service: Service
    job: str
    pods: int
    request_mib: int
    first_mib: int
    most_mib: int
    lengthened: int = 1


MIXES: Mapping[str, MemoryMix] = {
    each.name: each
    for each in (
        MemoryMix(
            name="redis above its request + hogs",
            service=REDIS,
            job=HOG,
            pods=3,
            request_mib=100,
            first_mib=200,
            most_mib=400,
        ),
        MemoryMix(
            name="redis within its request + hogs",
            service=REDIS,
            job=HOG,
            pods=3,
            request_mib=440,
            first_mib=200,
            most_mib=400,
        ),
        MemoryMix(
            name="nginx with many files + a reader",
            service=PAGES,
            job=READER,
            pods=1,
            request_mib=100,
            first_mib=0,
            most_mib=0,
            lengthened=3,
        ),
    )
}
_PROGRAMS: Mapping[str, type[Redis] | type[Pages]] = {"redis": Redis, "nginx": Pages}
# Larger than the node.
_READ_BYTES = 2 * CAPACITY_MIB * MIB


def service_score(request_mib: int, capacity_mib: int = CAPACITY_MIB) -> int:
    """Return the oom_score_adj that kubelet gives a container of a Burstable pod.

    (pkg/kubelet/qos/policy.go, GetContainerOOMScoreAdjust.)
    """
    return min(999, max(3, 1000 - 1000 * request_mib // capacity_mib))


def grown_mib(mix: MemoryMix, passed_ratio: float) -> float:
    """Return what the service holds at a part of the block: it grows in the second third."""
    part = min(1.0, max(0.0, 3 * passed_ratio - 1))
    return mix.first_mib + part * (mix.most_mib - mix.first_mib)


class MemoryRunner:
    """Runs blocks of *seconds* on *node*, in *session*."""

    def __init__(self, session: Session, node: MemoryNode, seconds: float) -> None:
        self._session, self._node, self._seconds = session, node, seconds

    def run(self, mix: MemoryMix, policy: str, number: int) -> MemoryBlock:
        """Run a block; whatever it started has ended then.

        :raises Exception: a program or a rule failed.
        """
        home, chosen = self._session.home, POLICIES[policy]
        learned = self._learned(mix) if chosen.mode and mix.job == READER else None
        file = home / "file"
        if mix.job == READER:
            make_file(file, _READ_BYTES)
        job = Job(self._node, home, mix.job, f"{mix.name} {number}", PODS[: mix.pods], file)
        with self._serving(mix) as program:
            try:
                with chosen.applied(self._node, job):
                    if chosen.mode:
                        self._start_agent(mix, chosen.mode, learned, chosen.refaults)
                    return self._measure(mix, policy, number, program, job)
            finally:
                job.end()
                self._session.stop_agent()

    @contextlib.contextmanager
    def _serving(self, mix: MemoryMix) -> Iterator[Redis | Pages]:
        """Run the service of *mix*; nothing is in the page cache before."""
        self._node.drop_cache()
        join = self._node.join(WEB, service_score(mix.request_mib))
        program = _PROGRAMS[mix.service.name](self._session.home, join)
        try:
            program.begin(mix.first_mib)
            yield program
        finally:
            program.end()

    def _learned(self, mix: MemoryMix) -> Path:
        """Return the data directory of an agent that watched the service without a job."""
        learned = self._session.home / f"learned-{mix.service.name}"
        if learned.exists():
            return learned
        print(f"compare: learning {mix.service.name}, {LEARN_S:.0f} s", flush=True)
        with self._serving(mix) as program:
            self._start_agent(mix, "observe", None)
            try:
                traffic = self._traffic(mix, program, time.monotonic_ns(), LEARN_S)
                try:
                    traffic.run()
                finally:
                    traffic.stop()
            finally:
                self._session.stop_agent()
        self._data.rename(learned)
        return learned

    @property
    def _data(self) -> Path:
        return self._session.home / "data"

    def _start_agent(
        self, mix: MemoryMix, mode: str, learned: Path | None, refaults: str = ""
    ) -> None:
        """Start an agent that has *learned*, and nothing from any other run.

        *refaults* is their sweet point instead of a learned one.
        """
        more: dict[str, object] = {"memory": {"capacity": f"{CAPACITY_MIB}MiB"}}
        if refaults:
            profile = yaml.safe_load((profiles_dir() / f"{mix.service.profile}.yaml").read_text())
            profile["indicators"]["refaults"]["sweet_point"] = refaults
            (self._session.home / "set.yaml").write_text(yaml.safe_dump(profile))
            more["profiles"] = ["set.yaml"]
        shutil.rmtree(self._data, ignore_errors=True)
        if learned is not None:
            shutil.copytree(learned, self._data)
        self._session.start_agent(
            mode,
            profile=mix.service.profile,
            service=WEB,
            jobs=f"{BATCH}/*",
            more=more,
        )

    def _traffic(
        self, mix: MemoryMix, program: Redis | Pages, now_ns: int, seconds: float
    ) -> Traffic:
        segments = mix.service.segments("steady", seconds)
        start_ns = now_ns + round(_LEAD_S * NS_PER_SEC)
        return Traffic(mix.service, program.port, segments, start_ns, self._session.home)

    def _measure(
        self, mix: MemoryMix, policy: str, number: int, program: Redis | Pages, job: Job
    ) -> MemoryBlock:
        load, seconds = os.getloadavg()[0], self._seconds * mix.lengthened
        now_ns = time.monotonic_ns()
        start_ns = now_ns + round(_LEAD_S * NS_PER_SEC)
        traffic = self._traffic(mix, program, now_ns, seconds)

        def passed_s() -> float:
            return (time.monotonic_ns() - start_ns) / NS_PER_SEC

        def grow() -> None:
            program.wanted_mib = grown_mib(mix, passed_s() / seconds)

        try:
            time.sleep(max(0.0, -passed_s()))
            refaults = self._node.use(WEB).refaults
            job.begin()
            with _steadily(grow):
                time.sleep(max(0.0, seconds - passed_s()))
                # The client waits for late answers; the job is measured within the block.
                work_mib = job.work_mib()
                deaths = program.deaths, job.deaths, job.evictions
                refaults = self._node.use(WEB).refaults - refaults
                intended, latency_ns = traffic.run()
        finally:
            traffic.stop()
        if self._session.agent is not None:
            self._session.agent.process.check()
        return MemoryBlock(
            mix=mix.name,
            policy=policy,
            round=number,
            service_deaths=deaths[0],
            p99_ms=tuple(window_p99_ms(intended, latency_ns, start_ns, seconds)),
            unanswered=int((latency_ns < 0).sum()),
            requests=len(latency_ns),
            refaults=refaults,
            work_mib_s=work_mib / seconds,
            job_deaths=deaths[1],
            evictions=deaths[2],
            load=load,
        )


@contextlib.contextmanager
def _steadily(step: Callable[[], None]) -> Iterator[None]:
    """Call *step* in a thread again and again."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(_POLL_S):
            step()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
