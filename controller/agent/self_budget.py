# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent's own cost, and the details of measurement that it sheds to stay within its budget.

CPU time is that of the agent, its children and the guardian, and, while the kernel counts it, of
the BPF programs. Above the CPU budget details are shed one by one in a fixed order; they are
measured again after the use was well below the budget for a long time. The time that HTTP requests
take is limited on its own (``telemetry.http_limits``) and sheds nothing, because clients, not the
agent, decide about it. Memory cannot be reduced: above its budget only a warning is logged.
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

_log = logging.getLogger(__name__)

_PERIOD_NS = 10 * NS_PER_SEC
# For PSS the kernel walks all page tables: this takes milliseconds, and memory changes slowly.
_MEMORY_PERIOD_NS = 30 * NS_PER_SEC
# A detail is measured again after the use was at most this part of the budget for the time below.
_LOW_USE = 0.8
_RETRY_NS = 600 * NS_PER_SEC
_MAX_RETRY_NS = 4 * 3600 * NS_PER_SEC
_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)
_HZ = os.sysconf("SC_CLK_TCK")


class SelfBudget:
    """Decides from the CPU time used how many details are shed.

    :param cpus: the budget, in CPUs.
    :param details: names of the details in the order in which they are shed.

    ``shed``: number of details that are shed now. ``used_cpus``: use in the last complete period
    of ten seconds, in CPUs. ``verdict``: a sentence for the log if ``shed`` has just changed, else
    empty.
    """

    __slots__ = (
        "_details",
        "_low_since_ns",
        "_retry_ns",
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
        # Start of the time of low use, and how long that time must last before a retry.
        self._low_since_ns: int | None = None
        self._retry_ns = _RETRY_NS
        self.shed = 0
        self.used_cpus: float | None = None
        self.verdict = ""

    def update(self, now_ns: int, spent_ns: int) -> bool:
        """Account for *spent_ns*, the CPU time used so far; return whether ``shed`` changed.

        CPU time before the first call, which compiles the probes, does not count.
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
            self._low_since_ns = None
            if self.shed < len(self._details):
                self.shed += 1
                self._set_verdict(f"detail {self._details[self.shed - 1]} is shed from now on")
        elif self.used_cpus > _LOW_USE * self.cpus or not self.shed:
            self._low_since_ns = None
        else:
            self._retry_detail(now_ns)
        return self.shed != before

    def _retry_detail(self, now_ns: int) -> None:
        if self._low_since_ns is None:
            self._low_since_ns = now_ns
        if now_ns - self._low_since_ns >= self._retry_ns:
            self._low_since_ns = None
            # If the detail has to be shed again, the next retry comes later.
            self._retry_ns = min(2 * self._retry_ns, _MAX_RETRY_NS)
            self.shed -= 1
            self._set_verdict(f"detail {self._details[self.shed]} is no longer shed")

    def _set_verdict(self, change: str) -> None:
        used = (self.used_cpus or 0.0) * 1000
        budget = self.cpus * 1000
        self.verdict = f"own CPU use {used:.0f}mcpu, budget {budget:.0f}mcpu: {change}"


def pss_bytes(pid: int) -> int | None:
    """Return the proportional set size of process *pid*; ``None`` if it cannot be read."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return None
    match = _PSS.search(text)
    return None if match is None else int(match[1]) * 1024


class CostMeter:
    """Reads the agent's CPU time every ten seconds and its memory every thirty.

    ``cost`` is the last result, ``None`` before the first.

    :param details: names of the details that can be shed, see ``SelfBudget``.
    :param probes: returns (runs, ns) of each probe's programs, as far as the kernel counts them.
    :param http_cpu_s: returns the CPU time of HTTP requests so far, in seconds.
    """

    def __init__(
        self,
        config: BudgetConfig,
        details: tuple[str, ...],
        probes: Callable[[], Mapping[str, tuple[int, int]]],
        http_cpu_s: Callable[[], float],
    ) -> None:
        self._config = config
        self._details = details
        self._probes = probes
        self._http_cpu_s = http_cpu_s
        self._budget = SelfBudget(config.cpus, details)
        self._due_ns = self._memory_due_ns = 0
        self._memory: int | None = None
        self._guardian = os.getppid()
        self._memory_exceeded = False
        self.cost: AgentCost | None = None

    def reconfigure(self, config: BudgetConfig) -> None:
        """Use the budget of *config* from now on; details that are shed stay so."""
        self._config = config
        self._budget.cpus = config.cpus

    def poll(self, now_ns: int) -> bool:
        """Update ``cost`` when it is due; return whether the number of shed details changed."""
        if now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + _PERIOD_NS
        if now_ns >= self._memory_due_ns:
            self._memory_due_ns = now_ns + _MEMORY_PERIOD_NS
            self._memory = self._read_memory()
        guardian_s = _cpu_s(self._guardian) if self._has_guardian() else 0.0
        own = resource.getrusage(resource.RUSAGE_SELF)
        helpers = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = own.ru_utime + own.ru_stime + helpers.ru_utime + helpers.ru_stime + guardian_s
        probes = self._probes()
        in_probes_ns = sum(time_ns for _, time_ns in probes.values())
        spent_ns = round((cpu_s - self._http_cpu_s()) * NS_PER_SEC) + in_probes_ns
        changed = self._budget.update(now_ns, spent_ns)
        if changed:
            _log.warning("%s", self._budget.verdict)
        self._check_memory(self._memory)
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

    def _check_memory(self, memory: int | None) -> None:
        over = memory is not None and memory > self._config.memory_bytes
        if over and not self._memory_exceeded:
            _log.warning(
                "own memory %s exceeds its budget %s: it cannot be reduced; raise budget.memory, "
                "or configure fewer workloads",
                format_bytes(memory or 0),
                format_bytes(self._config.memory_bytes),
            )
        self._memory_exceeded = over


def _cpu_s(pid: int) -> float:
    # proc_pid_stat(5): fields 14 and 15, counted after the name, which may hold spaces and ")".
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _HZ


def _same_program(pid: int) -> bool:
    # Without a guardian the parent is a shell or init, which is not part of the agent's cost.
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() == Path("/proc/self/cmdline").read_bytes()
    except OSError:
        return False
