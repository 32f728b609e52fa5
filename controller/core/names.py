# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Names that leave the process, each with the sentence that says what it is.

docs/REFERENCE.md, ``sweetpoint doctor`` and ``sweetpoint check`` show the sentences.
"""

from enum import StrEnum
from typing import Self

__all__ = ("Explained", "IndicatorName", "Knob")


class Explained(StrEnum):
    """Base of enumerations whose members are (value, sentence); ``meaning`` is the sentence."""

    _value_: str
    meaning: str

    # The default is for type checkers, which take Knob("cpu.idle") for a call of this.
    def __new__(cls, value: str, meaning: str = "") -> Self:
        """Return the member of *value*."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member


class Knob(Explained):
    """A setting of the kernel or the hardware; its values are texts, see ``KnobValue``."""

    CPU_QUOTA = (
        "cpu.quota",
        "CPU time that a best-effort workload may use per period (CFS quota); of a service its "
        "burst only.",
    )
    SCHED_IDLE = (
        "cpu.idle",
        "Lets best-effort work run only where no other task wants the CPU (sched-idle), with its "
        "weight.",
    )
    CPUSET = "cpuset.cpus", "CPUs of best-effort work: none that kubelet gave to one pod alone."
    CORE_COOKIE = (
        "core.cookie",
        "Core-scheduling cookie of tasks, which keeps best-effort work off the cores of services.",
    )
    RESCTRL_MOUNT = "resctrl.mount", "The mount of /sys/fs/resctrl."
    RESCTRL_GROUP = "resctrl.group", "The resctrl control group that holds best-effort work."
    RESCTRL_MONITOR = "resctrl.monitor", "The resctrl monitoring groups that measure workloads."
    LLC_WAYS = (
        "resctrl.l3",
        "Ways of the last-level cache that best-effort work may fill (L3 of the control group).",
    )
    MBA = (
        "resctrl.mb",
        "Memory bandwidth that best-effort work may use (MB of the control group).",
    )
    TC_TREE = "tc.tree", "Queues and classes that divide a link among the tiers."
    TC_MARK = "tc.mark", "Filters at the host's end of a pod's veth, which mark the pod's packets."
    TC_CEILING = "tc.ceiling", "Most bandwidth of a link that best-effort work may use."
    MEMORY_HIGH = (
        "memory.high",
        "Memory of a best-effort workload above which the kernel slows it down and reclaims.",
    )
    MEMORY_MAX = (
        "memory.max",
        "Most memory of all best-effort work below a cgroup: what everything else leaves of the "
        "node's memory.",
    )
    OOM_SCORE_ADJ = (
        "oom_score_adj",
        "Order in which the kernel ends processes for want of memory: those of best-effort work "
        "first.",
    )
    IO_WEIGHT = "io.weight", "Share of a busy disk that a best-effort workload gets."
    IO_COST = (
        "io.cost",
        "Whether a disk follows io.weight (io.cost.qos of the root cgroup, for the whole host).",
    )
    IO_MAX = "io.max", "Bytes per second that a best-effort workload may read and write on a disk."
    FREEZE = "cgroup.freeze", "Stops an evicted workload for a while on a host without Kubernetes."


class IndicatorName(Explained):
    """An indicator for which a sweet point can be set.

    ``runq_p*`` are percentiles of the run-queue waits of a service's tasks. ``runq_delay_p99`` is
    the wait that 99 of 100 arrivals at random times do not exceed (``indicators.measurement``).
    """

    RUNQ_P50 = "runq_p50", "Wait of the service's tasks for a CPU, median over all waits."
    RUNQ_P95 = "runq_p95", "Wait of the service's tasks for a CPU, 95th percentile over all waits."
    RUNQ_P99 = "runq_p99", "Wait of the service's tasks for a CPU, 99th percentile over all waits."
    RUNQ_DELAY_P99 = (
        "runq_delay_p99",
        "Wait for a CPU that 99 of 100 requests would not exceed if they came at random times.",
    )
    WAIT_RATIO = "wait_ratio", "Share of the time in which the service's tasks wait for a CPU."
    CPI = "cpi", "Cycles per instruction of the service."
    LLC_MPKI = "llc_mpki", "Misses of the last-level cache per 1,000 instructions of the service."
    CPU_PER_PACKET = "cpu_per_packet", "CPU time of the service per packet sent or received."
    NET_RATE = "net_rate", "Bytes per second that the service sends and receives."
    NET_BACKLOG = "net_backlog", "Time that packets wait in the services' tier of a shaped link."
    NET_DROPS = "net_drops", "Share of the packets in the services' tier that are dropped."
    PSI_CPU = "psi_cpu", "Share of the time in which a task of the service waits for a CPU (PSI)."
    PSI_MEMORY = (
        "psi_memory",
        "Share of the time in which a task of the service waits for memory (PSI).",
    )
    REFAULTS = (
        "refaults",
        "Pages per second that the service reads again because the kernel dropped them to make "
        "room.",
    )
    PSI_IO = "psi_io", "Share of the time in which a task of the service waits for a disk (PSI)."
    DISK_WAIT = (
        "disk_wait",
        "Mean time of the service's requests to disks: reads, and writes that a task waits for.",
    )
    SERVICE = "service", "A figure that the service reports itself, such as a request latency."
