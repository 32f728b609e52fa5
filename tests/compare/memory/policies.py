# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What manages the memory of a block: nothing, the rules of other programs, a limit, sweetpoint.

A rule runs in a thread of the comparison, as those about CPUs do. Everything has what kubelet does
in any case: its weights of CPU and its oom_score_adj.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
from dataclasses import dataclass
import os
import random
import threading
import time
from typing import Protocol

from tests.compare.memory.job import Job
from tests.compare.memory.node import BATCH, CAPACITY_MIB, MIB, NODE, MemoryNode
from tests.compare.memory.rules import (
    katalyst_limit,
    koordinator_release,
    koordinator_victims,
    kubelet_is_short,
    kubelet_victim,
)

__all__ = ("OURS", "POLICIES", "Policy")

OURS = "sweetpoint"
_CAPACITY = CAPACITY_MIB * MIB
# Flag -memory-evict-cool-time-seconds of koordlet.
_KOORDINATOR_COOL_S = 4.0
# Upstream has 4 GiB at least, for nodes with much more than the one here: this is that of 64 GiB.
_KATALYST_WATERMARK = _CAPACITY // 16


class _Rule(Protocol):
    interval_s: float

    def step(self) -> None: ...


class _Kubelet:
    """Hard eviction; a BestEffort pod is not admitted again while there is memory pressure.

    That lasts five minutes at least (evictionPressureTransitionPeriod), so for the block.
    """

    interval_s = 10.0  # monitoringInterval of the eviction manager

    def __init__(self, node: MemoryNode, job: Job) -> None:
        self._node, self._job = node, job

    def step(self) -> None:
        if not kubelet_is_short(_CAPACITY, self._node.use(NODE).working_set_bytes):
            return
        pods = {pod: self._node.use(pod).working_set_bytes for pod in self._job.living}
        victim = kubelet_victim(pods)
        if victim is not None:
            self._job.evict(victim, for_good=True)


class _Koordinator:
    """BEMemoryEvict; a killed container is started again by kubelet."""

    interval_s = 1.0  # flag -memory-evict-interval-seconds

    def __init__(self, node: MemoryNode, job: Job) -> None:
        self._node, self._job = node, job
        self._cool_s = 0.0

    def step(self) -> None:
        if time.monotonic() < self._cool_s:
            return
        release = koordinator_release(_CAPACITY, self._node.use(NODE).needed_bytes)
        if not release:
            return
        pods = {pod: self._node.use(pod).needed_bytes for pod in self._job.living}
        for pod in koordinator_victims(release, pods):
            self._job.evict(pod, for_good=False)
            self._cool_s = time.monotonic() + _KOORDINATOR_COOL_S


class _Katalyst:
    """memory-guard; its memory.high does not exist on v1."""

    interval_s = 1.0

    def __init__(self, node: MemoryNode, _job: Job) -> None:
        self._node = node

    def step(self) -> None:
        used = self._node.use(BATCH).all_bytes
        free = _CAPACITY - self._node.use(NODE).all_bytes
        self._node.limit_batch(katalyst_limit(used, free, _KATALYST_WATERMARK))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy by name. ``mode`` is that of our agent; empty: none. ``limit_mib`` is of the job.

    ``refaults`` is the agent's sweet point of them, where it is not to learn one; only mixes with
    page cache have that policy. ``rule`` makes a rule that is stepped in the block.
    """

    name: str
    mode: str = ""
    refaults: str = ""
    limit_mib: int | None = None
    rule: Callable[[MemoryNode, Job], _Rule] | None = None

    @contextlib.contextmanager
    def applied(self, node: MemoryNode, job: Job) -> Iterator[None]:
        """Apply the policy to *node*, whose job has no limit before and at the end.

        :raises Exception: what the rule raised, at the end.
        """
        node.limit_batch(None if self.limit_mib is None else self.limit_mib * MIB)
        stop = threading.Event()
        errors: list[Exception] = []
        thread = threading.Thread(target=self._run, args=(node, job, stop, errors), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            node.limit_batch(None)
        if errors:
            raise errors[0]

    def _run(
        self, node: MemoryNode, job: Job, stop: threading.Event, errors: list[Exception]
    ) -> None:
        if self.rule is None:
            return
        try:
            rule = self.rule(node, job)
            # As that of an agent with the highest nice.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -20)
            # An agent that has run for long looks at any moment of its interval.
            wait_s = rule.interval_s * random.random()
            while not stop.wait(wait_s):
                rule.step()
                wait_s = rule.interval_s
        except Exception as error:  # a block without its rule is no block
            errors.append(error)


POLICIES: Mapping[str, Policy] = {
    each.name: each
    for each in (
        Policy(name="none"),
        Policy(name="kubelet eviction", rule=_Kubelet),
        Policy(name="koordinator", rule=_Koordinator),
        Policy(name="katalyst", rule=_Katalyst),
        *(Policy(name=f"limit {mib} MiB", limit_mib=mib) for mib in (160, 200, 240, 280)),
        Policy(name=OURS, mode="enforce"),
        # The least that the agent learns.
        Policy(name=f"{OURS}, 200 refaults/s", mode="enforce", refaults="200/s"),
    )
}
