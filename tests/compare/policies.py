# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What manages the job of a block: nothing, cpu.idle, the rules of two other projects, sweetpoint.

The rules of Koordinator and Katalyst are those of the simulation, which are checked against their
behaviour there; here they read the accounts of the kernel and write the quota of the job's cgroup.
They see the CPU time of the service and of the job only: other work of the machine would lower
their budget.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
from dataclasses import dataclass, field
import math
import os
from pathlib import Path
import threading
import time
from typing import Protocol

from controller.simulation.policies.katalyst import TARGETS, Rama
from controller.simulation.policies.koordinator import cpu_budget, next_quota

__all__ = ("DEFAULT_POLICIES", "POLICIES", "CpuKnobs", "Node", "Policy")

PERIOD_US = 100_000
_KOORDINATOR_S = 1.0
_KATALYST_S = 5.0
# Katalyst keeps four CPUs for either side. On a smaller machine it would have nothing to decide, so
# here a tenth of the machine remains for each.
_KATALYST_LEAST = 0.1


class CpuKnobs:
    """cpu.idle, weight and quota of the cgroup *directory*; counts the rule's writes of quotas."""

    def __init__(self, directory: Path, version: str) -> None:
        self._directory, self._v2 = directory, version == "v2"
        self.writes = 0

    def release(self) -> None:
        """Take idle class and quota away; the weight is the one that kubelet gives BestEffort pods.

        The kernel refuses a weight while the cgroup is idle (EINVAL), and a cgroup that is no
        longer idle has the default weight, whatever it had before (kernel/sched/fair.c,
        sched_group_set_idle): so the weight is written last, each time.
        """
        self._write_idle(False)
        self._write_quota(math.inf)
        weight, value = ("cpu.weight", "1") if self._v2 else ("cpu.shares", "2")
        (self._directory / weight).write_text(value)

    def set_idle(self) -> None:
        """Put the cgroup into the idle class."""
        self._write_idle(True)

    def quota_cpus(self) -> float:
        """Return the quota as it is now; infinity: without a limit."""
        if self._v2:
            quota, period = (self._directory / "cpu.max").read_text().split()
        else:
            quota = (self._directory / "cpu.cfs_quota_us").read_text()
            period = (self._directory / "cpu.cfs_period_us").read_text()
        return math.inf if quota == "max" or int(quota) < 0 else int(quota) / int(period)

    def _write_idle(self, value: bool) -> None:
        (self._directory / "cpu.idle").write_text(str(int(value)))

    def set_quota(self, cpus: float) -> None:
        """Limit the cgroup to *cpus*; infinity: without a limit."""
        self._write_quota(cpus)
        self.writes += 1

    def _write_quota(self, cpus: float) -> None:
        quota_us = "max" if math.isinf(cpus) else str(max(1000, round(cpus * PERIOD_US)))
        if self._v2:
            (self._directory / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        else:
            text = "-1" if quota_us == "max" else quota_us
            (self._directory / "cpu.cfs_quota_us").write_text(text)
            if math.isinf(cpus):
                (self._directory / "cpu.cfs_period_us").write_text(str(PERIOD_US))


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What a rule of a block sees: the job's knobs, and counters in ns of the service.

    ``memory`` is what the rule has kept from earlier blocks of the mix.
    """

    knobs: CpuKnobs
    service_oncpu_ns: Callable[[], int]
    service_wait_ns: Callable[[], int]
    memory: dict[str, float] = field(default_factory=dict)


class _Rule(Protocol):
    interval_s: float

    def step(self) -> None: ...


class _Koordinator:
    """CPUSuppress with cfsQuota: by its code the default cpuset leaves two CPUs."""

    interval_s = _KOORDINATOR_S

    def __init__(self, node: Node, threshold: float) -> None:
        self._node, self._threshold = node, threshold
        self._quota = math.inf
        self._cpus = os.cpu_count() or 1
        self._last = time.monotonic_ns(), node.service_oncpu_ns()

    def step(self) -> None:
        now = time.monotonic_ns(), self._node.service_oncpu_ns()
        used = (now[1] - self._last[1]) / (now[0] - self._last[0])
        self._last = now
        quota = next_quota(cpu_budget(self._cpus, self._threshold, used), self._quota, self._cpus)
        if quota != self._quota:
            self._quota = quota
            self._node.knobs.set_quota(quota)


class _Katalyst:
    """The controller "rama" on waiting and use; the job gets what the service does not require.

    A block is two of its periods, so it goes on where the last block of the mix ended.
    """

    interval_s = _KATALYST_S

    def __init__(self, node: Node) -> None:
        self._node = node
        self._cpus = float(os.cpu_count() or 1)
        self._required = node.memory.get("required", self._cpus / 2)
        indicators = [TARGETS["sched_wait"], TARGETS["usage"]]
        most = (1 - _KATALYST_LEAST) * self._cpus
        self._rama = Rama(indicators, _KATALYST_LEAST * self._cpus, most)
        self._last = self._read()
        node.knobs.set_quota(self._cpus - self._required)

    def _read(self) -> tuple[int, int, int]:
        return time.monotonic_ns(), self._node.service_oncpu_ns(), self._node.service_wait_ns()

    def step(self) -> None:
        now = self._read()
        passed, used, waited = (new - old for new, old in zip(now, self._last, strict=True))
        self._last = now
        values = [waited / passed * 1e3 / self._required, used / passed / self._required]
        self._required = self._rama.propose(values, self._required)
        self._node.memory["required"] = self._required
        self._node.knobs.set_quota(self._cpus - self._required)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy by name. ``mode`` is that of our agent, which runs in the block; empty: none.

    ``idle``: cpu.idle of the job; ``sched_idle``: whether our agent may set it. ``rule`` makes a
    rule that is stepped in the block.
    """

    name: str
    mode: str = ""
    idle: bool = False
    sched_idle: bool = True
    rule: Callable[[Node], _Rule] | None = None

    @contextlib.contextmanager
    def applied(self, node: Node) -> Iterator[None]:
        """Apply the policy to *node*, whose knobs are released before and at the end.

        :raises Exception: what the rule raised, at the end.
        """
        node.knobs.release()
        if self.idle:
            node.knobs.set_idle()
        stop = threading.Event()
        errors: list[BaseException] = []
        thread = threading.Thread(target=self._run, args=(node, stop, errors), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            node.knobs.release()
        if errors:
            raise errors[0]

    def _run(self, node: Node, stop: threading.Event, errors: list[BaseException]) -> None:
        if self.rule is None:
            return
        try:
            self._step(self.rule(node), stop)
        except Exception as error:  # a block without its rule is no block
            errors.append(error)

    @staticmethod
    def _step(rule: _Rule, stop: threading.Event) -> None:
        # A daemon of root with the highest nice is not delayed by the job either.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -20)
        while not stop.wait(rule.interval_s):
            rule.step()


def _koordinator(threshold: float) -> Callable[[Node], _Rule]:
    return lambda node: _Koordinator(node, threshold)


POLICIES: Mapping[str, Policy] = {
    each.name: each
    for each in (
        Policy(name="none"),
        Policy(name="sched-idle", idle=True),
        *(
            Policy(name=f"koordinator {percent} %", rule=_koordinator(percent / 100))
            for percent in (50, 65, 80)
        ),
        Policy(name="katalyst", idle=True, rule=_Katalyst),
        Policy(name="observe", mode="observe"),
        Policy(name="sweetpoint, no cpu.idle", mode="enforce", sched_idle=False),
        Policy(name="sweetpoint", mode="enforce"),
    )
}
DEFAULT_POLICIES = ("none", "sched-idle", "koordinator 65 %", "katalyst", "observe", "sweetpoint")
