# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the agent itself costs, guardian and probes included, against its budget.

The agent's own budget: what it may cost, and what it does without when it costs more.

CPU is that of all its processes and, while the kernel counts it, of its BPF programs. Detail is
shed one by one in a fixed order, and comes back when there has been room for it for long. Memory
cannot be shed: being over it is said.
"""

from collections.abc import Callable, Mapping
import logging
import os
from pathlib import Path
import re
import resource

from controller.config.sections.agent import BudgetConfig
from controller.core.units import NS_PER_SEC, format_bytes
from controller.telemetry.report import AgentCost

__all__ = (
    "CostMeter",
    "SelfBudget",
    "pss_bytes",
)

_PERIOD_NS = 10 * NS_PER_SEC
# Below this part of the budget for as long as the patience, a detail is tried again.
_ROOM = 0.8
_PATIENCE_NS = 600 * NS_PER_SEC
_LONGEST_NS = 4 * 3600 * NS_PER_SEC


class SelfBudget:
    """Follows the CPU time spent.

    :param cpus: what may be spent, in CPUs.
    :param details: names of what can be done without, the first one first.

    ``shed`` is how many of them are done without now, ``used_cpus`` the use in the last whole
    period of ten seconds, ``verdict`` a sentence when ``shed`` has just changed.
    """

    __slots__ = (
        "_details",
        "_patience_ns",
        "_quiet_ns",
        "_since_ns",
        "_spent_ns",
        "cpus",
        "shed",
        "used_cpus",
        "verdict",
    )

    def __init__(self, cpus: float, details: tuple[str, ...]) -> None:
        self.cpus = cpus
        self._details = details
        self._since_ns: int | None = None
        self._spent_ns = 0
        # Since when there has been room, and how long that must last.
        self._quiet_ns: int | None = None
        self._patience_ns = _PATIENCE_NS
        self.shed = 0
        self.used_cpus: float | None = None
        self.verdict = ""

    @property
    def without(self) -> tuple[str, ...]:
        """What is done without now."""
        return self._details[: self.shed]

    def update(self, now_ns: int, spent_ns: int) -> bool:
        """Take the CPU time *spent_ns* since the start; return whether ``shed`` changed.

        The first call only bases it: compiling the probes is not counted.
        """
        self.verdict = ""
        if self._since_ns is None:
            self._since_ns, self._spent_ns = now_ns, spent_ns
        elapsed_ns = now_ns - self._since_ns
        if elapsed_ns < _PERIOD_NS:
            return False
        self.used_cpus = (spent_ns - self._spent_ns) / elapsed_ns
        self._since_ns, self._spent_ns = now_ns, spent_ns
        before = self.shed
        if self.used_cpus > self.cpus:
            self._quiet_ns = None
            if self.shed < len(self._details):
                self.shed += 1
                self._log(f"without {self._details[self.shed - 1]} from now on")
        elif self.used_cpus > _ROOM * self.cpus or not self.shed:
            self._quiet_ns = None
        else:
            self._try_again(now_ns)
        return self.shed != before

    def _try_again(self, now_ns: int) -> None:
        if self._quiet_ns is None:
            self._quiet_ns = now_ns
        if now_ns - self._quiet_ns >= self._patience_ns:
            self._quiet_ns = None
            # If it has to go again, the next trial comes later.
            self._patience_ns = min(2 * self._patience_ns, _LONGEST_NS)
            self.shed -= 1
            self._log(f"with {self._details[self.shed]} again")

    def _log(self, what: str) -> None:
        used = (self.used_cpus or 0.0) * 1000
        self.verdict = f"own cost {used:.0f}mcpu of {self.cpus * 1000:.0f}mcpu: {what}"


_log = logging.getLogger(__name__)

_EVERY_NS = 10 * NS_PER_SEC
# For the memory the kernel walks all page tables: milliseconds for something that moves slowly.
_MEMORY_EVERY_NS = 30 * NS_PER_SEC
_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)
_HZ = os.sysconf("SC_CLK_TCK")


def pss_bytes(pid: int) -> int | None:
    """Return the proportional set size of process *pid*; ``None`` if it may not be read."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return None
    match = _PSS.search(text)
    return None if match is None else int(match[1]) * 1024


class CostMeter:
    """Reads the cost every ten seconds, what of it is memory every thirty.

    :param details: what can be done without, see ``SelfBudget``.
    :param probes: returns (runs, ns) of each probe's programs, as far as the kernel counts it.
    """

    def __init__(
        self,
        config: BudgetConfig,
        details: tuple[str, ...],
        probes: Callable[[], Mapping[str, tuple[int, int]]],
    ) -> None:
        self._config = config
        self._details = details
        self._probes = probes
        self._budget = SelfBudget(config.cpus, details)
        self._due_ns = self._memory_due_ns = 0
        self._memory: int | None = None
        self._guardian = os.getppid()
        self._over = False
        self.cost: AgentCost | None = None

    def reconfigure(self, config: BudgetConfig) -> None:
        """Take another budget."""
        self._config = config
        self._budget.cpus = config.cpus

    def poll(self, now_ns: int) -> bool:
        """Bring ``cost`` up to date; return whether another detail is to be done without."""
        if now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + _EVERY_NS
        if now_ns >= self._memory_due_ns:
            self._memory_due_ns = now_ns + _MEMORY_EVERY_NS
            self._memory = self._read_memory()
        guardian_s = _cpu_s(self._guardian) if self._has_guardian() else 0.0
        own = resource.getrusage(resource.RUSAGE_SELF)
        helpers = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = own.ru_utime + own.ru_stime + helpers.ru_utime + helpers.ru_stime + guardian_s
        probes = self._probes()
        in_probes_ns = sum(time_ns for _, time_ns in probes.values())
        changed = self._budget.update(now_ns, round(cpu_s * NS_PER_SEC) + in_probes_ns)
        if changed:
            _log.warning("%s", self._budget.verdict)
        self._judge_memory(self._memory)
        self.cost = AgentCost(
            cpu_s=cpu_s,
            pss_bytes=self._memory,
            used_cpus=self._budget.used_cpus,
            budget_cpus=self._config.cpus,
            budget_bytes=self._config.memory_bytes,
            details=self._details,
            shed=self._budget.shed,
            probes=probes,
        )
        return changed

    def _read_memory(self) -> int | None:
        parts = [pss_bytes(os.getpid())]
        if self._has_guardian():
            parts.append(pss_bytes(self._guardian))
        known = [part for part in parts if part is not None]
        return sum(known) if known else None

    def _has_guardian(self) -> bool:
        return os.getppid() == self._guardian and _same_program(self._guardian)

    def _judge_memory(self, memory: int | None) -> None:
        over = memory is not None and memory > self._config.memory_bytes
        if over and not self._over:
            _log.warning(
                "own memory %s of %s: nothing of it can be shed; raise budget.memory, or limit "
                "the workloads",
                format_bytes(memory or 0),
                format_bytes(self._config.memory_bytes),
            )
        self._over = over


def _cpu_s(pid: int) -> float:
    # Fields 14 and 15 behind the name, which may hold spaces and brackets.
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _HZ


def _same_program(pid: int) -> bool:
    # Without a guardian the parent is a shell or init, which is none of our cost.
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() == Path("/proc/self/cmdline").read_bytes()
    except OSError:
        return False
