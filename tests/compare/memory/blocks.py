# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Blocks of the comparison where memory is short: a service that grows beside a job."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
from dataclasses import dataclass
import os
import shutil
import threading
import time

from controller.core.units import NS_PER_SEC
from controller.demo.session import Session
from tests.compare.blocks import window_p99_ms
from tests.compare.memory.job import Job
from tests.compare.memory.node import (
    BATCH,
    CAPACITY_MIB,
    PODS,
    WEB,
    MemoryNode,
)
from tests.compare.memory.policies import POLICIES
from tests.compare.memory.record import MemoryBlock
from tests.compare.memory.redis import REDIS, Redis
from tests.compare.services import Traffic

__all__ = ("MIXES", "MemoryMix", "MemoryRunner", "grown_mib", "service_score")

_LEAD_S = 2.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMix:
    """A mix by name. The service requests ``request_mib``, and grows from ``first_mib`` to more."""

    name: str
    job: str
    pods: int
    request_mib: int
    first_mib: int
    most_mib: int


MIXES: Mapping[str, MemoryMix] = {
    each.name: each
    for each in (
        MemoryMix(
            name="redis above its request + hogs",
            job="hog",
            pods=3,
            request_mib=100,
            first_mib=200,
            most_mib=400,
        ),
        MemoryMix(
            name="redis within its request + hogs",
            job="hog",
            pods=3,
            request_mib=440,
            first_mib=200,
            most_mib=400,
        ),
    )
}


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
        home = self._session.home
        chosen = POLICIES[policy]
        self._node.drop_cache()
        redis = Redis(home, self._node.join(WEB, service_score(mix.request_mib)))
        seed = f"{mix.name} {number}"
        job = Job(self._node, home, mix.job, seed, PODS[: mix.pods], home / "file")
        try:
            redis.begin(mix.first_mib)
            with chosen.applied(self._node, job):
                if chosen.mode:
                    self._start_agent(chosen.mode)
                return self._measure(mix, policy, number, redis, job)
        finally:
            job.end()
            redis.end()
            self._session.stop_agent()

    def _start_agent(self, mode: str) -> None:
        shutil.rmtree(self._session.home / "data", ignore_errors=True)
        self._session.start_agent(
            mode,
            profile=REDIS.profile,
            service=WEB,
            jobs=f"{BATCH}/*",
            more={"memory": {"capacity": f"{CAPACITY_MIB}MiB"}},
        )

    def _measure(
        self, mix: MemoryMix, policy: str, number: int, redis: Redis, job: Job
    ) -> MemoryBlock:
        load = os.getloadavg()[0]
        segments = REDIS.segments("steady", self._seconds)
        start_ns = time.monotonic_ns() + round(_LEAD_S * NS_PER_SEC)
        traffic = Traffic(REDIS, redis.port, segments, start_ns, self._session.home)
        try:
            time.sleep(max(0.0, (start_ns - time.monotonic_ns()) / NS_PER_SEC))
            refaults = self._node.use(WEB).refaults
            job.begin()
            with _steadily(lambda: self._grow(mix, redis, start_ns)):
                time.sleep(max(0.0, self._seconds + (start_ns - time.monotonic_ns()) / NS_PER_SEC))
                # The client waits for late answers; the job is measured within the block.
                work_mib = job.work_mib()
                deaths = redis.deaths, job.deaths, job.evictions
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
            p99_ms=tuple(window_p99_ms(intended, latency_ns, start_ns, self._seconds)),
            unanswered=int((latency_ns < 0).sum()),
            requests=len(latency_ns),
            refaults=refaults,
            work_mib_s=work_mib / self._seconds,
            job_deaths=deaths[1],
            evictions=deaths[2],
            load=load,
        )

    def _grow(self, mix: MemoryMix, redis: Redis, start_ns: int) -> None:
        passed_s = (time.monotonic_ns() - start_ns) / NS_PER_SEC
        redis.wanted_mib = grown_mib(mix, passed_s / self._seconds)


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
