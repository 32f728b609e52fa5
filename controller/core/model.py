# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The vocabulary: every record that crosses a border between two parts of the program.

Records are immutable. ``None`` means "not measurable now" and never zero. Times are
nanoseconds of CLOCK_MONOTONIC, counters count since the workload was first seen. Channels
and knobs are listed for the whole product, also where nothing moves them yet, so that
recordings, the journal and the metrics keep their form when an actuator is added.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, NewType

__all__ = (
    "STRUCTURAL_KNOBS",
    "Blame",
    "CgroupId",
    "Channel",
    "EvictionAnswer",
    "EvictionResult",
    "IndicatorName",
    "Knob",
    "KnobReading",
    "KnobValue",
    "LinkSample",
    "Mode",
    "QosClass",
    "ServiceReading",
    "Snapshot",
    "Target",
    "TargetKind",
    "Workload",
    "WorkloadSample",
)


class QosClass(StrEnum):
    """How a workload is treated; system is measured and never touched."""

    SYSTEM = "system"
    LS = "latency-sensitive"
    BE = "best-effort"


class Mode(StrEnum):
    """``observe`` plans and reports, ``enforce`` also writes."""

    OBSERVE = "observe"
    ENFORCE = "enforce"


class Channel(StrEnum):
    """A resource through which best-effort work can hurt a service."""

    CPU = "cpu"
    CACHE = "cache"
    NETWORK = "network"
    MEMORY = "memory"
    IO = "io"


class Knob(StrEnum):
    """A setting of the kernel or the hardware. Values are canonical text, see KnobValue."""

    CPU_QUOTA = "cpu.quota"
    SCHED_IDLE = "cpu.idle"
    CORE_COOKIE = "core.cookie"
    RESCTRL_MOUNT = "resctrl.mount"
    RESCTRL_GROUP = "resctrl.group"
    RESCTRL_MONITOR = "resctrl.monitor"
    LLC_WAYS = "resctrl.l3"
    MBA = "resctrl.mb"
    TC_TREE = "tc.tree"
    TC_MARK = "tc.mark"
    TC_CEILING = "tc.ceiling"
    MEMORY_HIGH = "memory.high"
    IO_WEIGHT = "io.weight"
    IO_MAX = "io.max"
    FREEZE = "cgroup.freeze"


# A knob's setting in canonical text, equal for equal settings, so that journal, recording,
# read-back and log share one form. cpu.quota: "QUOTA_US PERIOD_US BURST_US" with "max" for no
# quota. cpu.idle: "IDLE WEIGHT" (weight is cpu.shares on v1, cpu.weight on v2), because the
# kernel forgets the weight when a cgroup turns idle. tc.ceiling: "EGRESS INGRESS" of the
# best-effort tier in bytes per second, 0 for a direction that is not shaped. cgroup.freeze: "0" or
# "1"; its targets have the scope "freezer", and only who carries out evictions moves it. Those of
# STRUCTURAL_KNOBS are objects that other knobs or tasks live in: "absent" or what was made;
# undoing them removes the object. tc.mark: the filters at the host's end of a pod's veth.
KnobValue = NewType("KnobValue", str)

# Made and removed beside the plan, by who keeps what is in them; the planner never sees them.
STRUCTURAL_KNOBS = frozenset(
    {
        Knob.RESCTRL_MOUNT,
        Knob.RESCTRL_GROUP,
        Knob.RESCTRL_MONITOR,
        Knob.TC_TREE,
        Knob.TC_MARK,
    }
)


class TargetKind(StrEnum):
    """What a knob belongs to; decides how ``Target.scope`` and ``Target.id`` are read."""

    CGROUP = "cgroup"
    RESCTRL_GROUP = "resctrl-group"
    LINK = "link"
    VETH = "veth"  # the host's end of a pod's veth; scope and id as those of LINK
    CORE_GROUP = "core-group"


class CgroupId(NamedTuple):
    """Identity of a cgroup: paths are reused, kernfs ids are not.

    ``hierarchy`` is ``v2`` or the v1 controller name (``cpu``), ``id`` the kernfs id (the
    inode number of the directory on 64-bit kernels; kernel commit 40430452fd5d).
    """

    hierarchy: str
    id: int


class Target(NamedTuple):
    """What an action acts on.

    ``scope`` is the cgroup hierarchy, the resctrl mount or the network namespace, ``id`` the
    kernfs id, CLOSID or ifindex. ``path`` is for people and for finding the object again; it
    never identifies it. A group of workloads that share a core-scheduling cookie has the scope
    ``core``, a number made from its name, and that name as path.
    """

    kind: TargetKind
    scope: str
    id: int
    path: str


class Workload(NamedTuple):
    """Somebody who runs here: a pod, or a cgroup of the standalone configuration.

    ``cgroup`` is its cgroup of the cpu controller and ``path`` that cgroup's path below the
    hierarchy's mount. Workloads with the same ``service`` are judged by their worst.
    ``core_group`` names whom it may share a core with, empty for everybody of its class.
    ``idle_at`` is where cpu.idle is to be set for it: a cgroup above with nothing but
    best-effort work in it, ``None`` for its own. ``evictable``: it is nobody's to keep here
    (DaemonSet and static pods are); of two that are equally to blame the one of lower
    ``priority`` goes first. ``limit_cpus`` and ``limit_memory_bytes`` are what a best-effort
    workload asked for and the most that it gets; ``None``: it did not say. The other limits are
    what it sends and gets at most over a link that we shape.
    """

    name: str
    cgroup: CgroupId
    path: str
    qos: QosClass
    service: str
    profile: str
    core_group: str = ""
    idle_at: Target | None = None
    priority: int = 0
    evictable: bool = True
    limit_cpus: float | None = None
    limit_memory_bytes: int | None = None
    limit_egress_bytes_per_s: int | None = None
    limit_ingress_bytes_per_s: int | None = None


class WorkloadSample(NamedTuple):
    """Counters of one workload (a NamedTuple: a thousand are built in every tick).

    ``wait_total_ns`` is what the kernel calls run_delay; ``wait_inflicted_ns`` the part of it
    during which the CPU ran somebody else's work, without time throttled by an own quota.
    ``runq_histogram`` counts waits per bucket of ``indicators.histogram`` and is kept for LS
    only. ``throttled_ns`` is the time an own CFS quota kept runnable tasks off the CPU.
    ``psi_*`` are kept for LS only and count since the cgroup was made. ``memory_bytes`` is what
    is charged to it now (memory.current), ``io_bytes`` what it read from and wrote to disks.
    """

    cgroup: CgroupId
    oncpu_ns: int | None = None
    wait_total_ns: int | None = None
    wait_inflicted_ns: int | None = None
    waits: int | None = None
    runq_histogram: tuple[int, ...] | None = None
    throttled_ns: int | None = None
    cycles: int | None = None
    instructions: int | None = None
    llc_misses: int | None = None
    tx_bytes: int | None = None
    rx_bytes: int | None = None
    llc_occupancy_bytes: int | None = None
    memory_bandwidth_bytes: int | None = None
    psi_cpu_some_ns: int | None = None
    psi_memory_some_ns: int | None = None
    psi_io_some_ns: int | None = None
    tx_packets: int | None = None
    rx_packets: int | None = None
    llc_references: int | None = None
    stalled_cycles: int | None = None
    memory_bytes: int | None = None
    io_bytes: int | None = None


class Blame(NamedTuple):
    """Wait that *culprit* inflicted on *victim*, ns since the pair is listed.

    One that gains nothing for a minute may be left out; it begins at zero when it comes back.

    A culprit of ``None`` is nobody that has a name here: ``system`` work outside all
    workloads when ``known``, otherwise time that the probe could not attribute.
    """

    victim: CgroupId
    culprit: CgroupId | None
    known: bool
    wait_ns: int


class ServiceReading(NamedTuple):
    """A service's own figure (request latency in ns, or any number), *age_ns* old.

    ``age_ns`` is ``None`` when the source is dead: it never answered, or too long ago. A value of
    ``None`` with an age is an answer: the service had nothing to do.
    """

    service: str
    value: float | None
    age_ns: int | None


class LinkSample(NamedTuple):
    """One tier of a shaped link in one direction; counters since the tier was made.

    ``link`` is the Target of ``Knob.TC_TREE``, ``tier`` one of ``system``, ``latency-sensitive``,
    ``best-effort``. Bytes are those of the qdisc (with the link header).
    """

    link: "Target"
    ingress: bool
    tier: str
    sent_bytes: int
    sent_packets: int
    drops: int
    backlog_bytes: int


class KnobReading(NamedTuple):
    """A knob as read back from the kernel."""

    target: Target
    knob: Knob
    value: KnobValue


class EvictionResult(StrEnum):
    """What became of an eviction that was asked for.

    ``evicted``: it was accepted and the workload is on its way. ``frozen`` and ``killed`` are done
    already. ``gone``: it had left before. ``refused``: not this one (a disruption budget).
    ``unanswered``: it was asked for and may have been accepted. ``held``: nobody can be evicted now
    (the API server is away). ``reported``: nothing was asked, because the agent only observes or
    nothing may be evicted here.
    """

    EVICTED = "evicted"
    FROZEN = "frozen"
    KILLED = "killed"
    GONE = "gone"
    REFUSED = "refused"
    UNANSWERED = "unanswered"
    HELD = "held"
    REPORTED = "reported"


class EvictionAnswer(NamedTuple):
    """The answer to one ``Eviction``.

    ``wait_ns``: how long a refused or frozen one is not to be asked again; for ``held`` and
    ``reported``: nobody; for ``evicted``: how long it may take to leave. 0 leaves it to the policy.
    """

    cgroup: CgroupId
    channel: Channel
    result: EvictionResult
    message: str
    wait_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything measured at one instant; all counters are cumulative.

    ``age_ns`` is the age of the newest probe data at ``time_ns`` (``None``: the probe is
    off). ``steal_ns`` and ``machine_busy_ns`` are summed over all CPUs; ``blame`` is sparse.
    ``core_overlap_ratio`` is the share of the services' running time during which best-effort
    work ran on the other thread of the same core. ``pressure_ns`` is when the ``psi_*`` counters
    were read, which is not in every tick (``None``: at ``time_ns``). ``evictions`` are the
    answers that came since the last snapshot.
    """

    time_ns: int
    age_ns: int | None
    workloads: tuple[WorkloadSample, ...]
    blame: tuple[Blame, ...] = ()
    system_oncpu_ns: int | None = None
    idle_ns: int | None = None
    steal_ns: int | None = None
    knobs: tuple[KnobReading, ...] = ()
    services: tuple[ServiceReading, ...] = ()
    links: tuple[LinkSample, ...] = ()
    core_overlap_ratio: float | None = None
    pressure_ns: int | None = None
    evictions: tuple[EvictionAnswer, ...] = ()


class IndicatorName(StrEnum):
    """What a sweet point can be set for.

    ``runq_p*`` are percentiles over the waits of a service's tasks, ``runq_delay_p99`` what
    99 of 100 arrivals at random times wait at most (``indicators.histogram``).
    """

    RUNQ_P50 = "runq_p50"
    RUNQ_P95 = "runq_p95"
    RUNQ_P99 = "runq_p99"
    RUNQ_DELAY_P99 = "runq_delay_p99"
    WAIT_RATIO = "wait_ratio"
    CPI = "cpi"
    LLC_MPKI = "llc_mpki"
    NET_RATE = "net_rate"
    NET_BACKLOG = "net_backlog"
    NET_DROPS = "net_drops"
    PSI_CPU = "psi_cpu"
    PSI_MEMORY = "psi_memory"
    PSI_IO = "psi_io"
    SERVICE = "service"
