# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The vocabulary: records that two or more packages exchange.

Records are immutable. ``None`` means "not measurable now", never zero. Times are nanoseconds of
CLOCK_MONOTONIC; counters count since the workload was first seen. The enumerations list the
channels and knobs of the whole product, also those without an actuator, so that recordings, the
journal and the metrics keep their form when an actuator is added.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, NewType

from controller.core.names import IndicatorName, Knob

__all__ = (
    "CLASS_KNOBS",
    "SERVICE_KNOBS",
    "STRUCTURAL_KNOBS",
    "Blame",
    "CgroupId",
    "Channel",
    "DiskRequests",
    "EvictionAnswer",
    "EvictionResult",
    "IndicatorName",
    "Knob",
    "KnobReading",
    "KnobValue",
    "LinkSample",
    "MemorySample",
    "MemoryUse",
    "Mode",
    "Outside",
    "Pause",
    "QosClass",
    "ServiceReading",
    "Snapshot",
    "Target",
    "TargetKind",
    "Workload",
    "WorkloadSample",
)


class QosClass(StrEnum):
    """Class of a workload. Those of class system are measured; only a class for disks or for
    caches that an administrator gives them changes them.
    """

    SYSTEM = "system"
    LS = "latency-sensitive"
    BE = "best-effort"


class Mode(StrEnum):
    """Mode of operation: ``observe`` plans and reports, ``enforce`` also writes knobs."""

    OBSERVE = "observe"
    ENFORCE = "enforce"


class Channel(StrEnum):
    """A shared resource through which best-effort work can slow a service down."""

    CPU = "cpu"
    CACHE = "cache"
    NETWORK = "network"
    MEMORY = "memory"
    IO = "io"


# The value of a knob as canonical text: equal settings have equal texts, so that journal,
# recording, read-back and log share one form. core.knob_values has the formats of the knobs that
# the planner moves. cpu.idle holds the weight too (cpu.shares on v1, cpu.weight on v2), because the
# kernel forgets it when a cgroup turns idle. cgroup.freeze is "0" or "1"; its targets have the
# scope "freezer", and only the eviction on this host writes it. oom_score_adj is "own" or
# "1000" for all processes of a cgroup; its targets have the scope "oom". io.cost is a line of
# io.cost.qos, see actuators/io_cost. The values of the other
# STRUCTURAL_KNOBS are "absent" or a description of the object; restoring "absent" removes it.
KnobValue = NewType("KnobValue", str)

# Knobs that are kernel objects in which other knobs or tasks live, that stand for tasks, or that
# other knobs need; tc.mark
# is the filters at the host's end of a pod's veth. The reconciler that fills such an object creates
# and removes it; no plan contains these knobs.
STRUCTURAL_KNOBS = frozenset(
    {
        Knob.RESCTRL_MOUNT,
        Knob.RESCTRL_GROUP,
        Knob.RESCTRL_MONITOR,
        Knob.TC_TREE,
        Knob.TC_MARK,
        Knob.OOM_SCORE_ADJ,
        Knob.IO_COST,
    }
)

# Knobs that the agent may move on latency-sensitive workloads: the burst of a service is a part of
# the value of its cpu.quota.
SERVICE_KNOBS = frozenset({Knob.CPU_QUOTA})
# Knobs that a class sets on workloads that are not best-effort (``Settings.io_classes``). All other
# knobs of cgroups are moved on best-effort workloads only.
CLASS_KNOBS = frozenset({Knob.IO_WEIGHT, Knob.IO_MAX})


class TargetKind(StrEnum):
    """The kind of object that a knob belongs to; defines what ``Target.scope`` and ``id`` mean."""

    CGROUP = "cgroup"
    RESCTRL_GROUP = "resctrl-group"
    LINK = "link"
    VETH = "veth"  # the host's end of a pod's veth; scope and id as for LINK
    CORE_GROUP = "core-group"
    DISK = "disk"  # scope "v2", id the device number, path MAJOR:MINOR


class CgroupId(NamedTuple):
    """Identity of a cgroup. Paths are reused, kernfs ids are not.

    ``hierarchy`` is ``v2`` or the name of the v1 controller (``cpu``), ``id`` the kernfs id: the
    inode number of the directory on 64-bit kernels (kernel commit 40430452fd5d).
    """

    hierarchy: str
    id: int


class Target(NamedTuple):
    """The object that an action changes.

    ``scope`` is the cgroup hierarchy, the resctrl mount or the network namespace, ``id`` the
    kernfs id, CLOSID or ifindex. ``path`` is for messages and for opening the object; scope and id
    alone identify it. A group of workloads that share a core-scheduling cookie has the scope
    ``core``, as id a number derived from its name, and as path that name.
    """

    kind: TargetKind
    scope: str
    id: int
    path: str

    @property
    def place(self) -> CgroupId:
        """Scope and id, which identify the object; of a cgroup they are its ``CgroupId``."""
        return CgroupId(self.scope, self.id)


class Workload(NamedTuple):
    """A workload of this node: a pod, or a cgroup that the configuration names.

    ``cgroup`` is its cgroup of the cpu controller and ``path`` that cgroup's path below the
    hierarchy's mount. Of the workloads with the same ``service`` the worst one counts.
    ``core_group`` names the group of workloads with which it may share a core; empty: all of its
    class. ``idle_at`` is the ancestor cgroup on which cpu.idle is set for it, which contains
    nothing but best-effort work; ``None``: its own cgroup. ``may_idle`` is false where another
    program writes the weight of its cgroup, which the kernel refuses for an idle one. ``quota_at``
    is the parent cgroup, if it contains nothing but best-effort work and may have a quota for all
    of it; ``None``: it may not. ``memory_at`` is the cgroup of the memory controller on which the
    memory of this workload is limited: the parent cgroup if it contains nothing but best-effort
    work, otherwise that of the workload or its pod; ``None``: it has none there.
    ``own_memory_at`` is that of the workload itself, for ``limit_memory_bytes``; ``None``: as
    ``cgroup``, or there is none that may be limited.
    ``evictable`` is false for DaemonSet and static pods; of two workloads with equal blame the one
    of lower ``priority`` is evicted first. ``limit_cpus`` and ``limit_memory_bytes`` are what a
    best-effort workload requested, which it never exceeds; ``None``: nothing requested. The limits
    of egress and ingress hold on links that the agent shapes. ``image`` identifies what a pod runs,
    because what was learned about one image does not hold for another; empty: not known.
    ``container_of`` is the cgroup of the pod of which this workload is one container; ``None``: it
    is a whole pod, or no pod. ``resctrl_class`` is the class of cache ways and memory
    bandwidth that a pod has before that of its profile, ``io_class`` the one for disks; empty:
    none. ``request_cpus`` and ``request_memory_bytes`` are what the pod of a service requested,
    which is only reported; ``None``: nothing, or not known. ``may_own_cpus``: kubelet may
    have given CPUs to this pod alone, so it is not kept off such CPUs.
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
    may_idle: bool = True
    image: str = ""
    container_of: Target | None = None
    quota_at: Target | None = None
    memory_at: Target | None = None
    resctrl_class: str = ""
    own_memory_at: Target | None = None
    request_cpus: float | None = None
    request_memory_bytes: int | None = None
    io_class: str = ""
    may_own_cpus: bool = False

    @property
    def whole(self) -> CgroupId:
        """The cgroup of what is evicted and has limits of bandwidth: the pod, else its own."""
        pod = self.container_of
        return self.cgroup if pod is None else pod.place

    @property
    def whole_name(self) -> str:
        """The name of what is evicted and has limits of bandwidth: the pod, else its own."""
        return self.name if self.container_of is None else self.service


class DiskRequests(NamedTuple):
    """Reads from and writes to one disk (``MAJOR:MINOR``), which may be a stacked one."""

    disk: str
    requests: int


class WorkloadSample(NamedTuple):
    """Counters of one workload (a NamedTuple: 1,000 of them are built in every tick).

    ``wait_total_ns`` is what the kernel calls run_delay. ``wait_inflicted_ns`` is the part of it
    during which the CPU ran tasks of other workloads, without the time throttled by the workload's
    own quota; ``throttled_ns`` is that time. ``wait_host_ns`` is the part during which the CPU was
    idle and woke up late, or stood still. ``runq_histogram`` counts waits per bucket
    of ``indicators.measurement``, for latency-sensitive workloads only. ``psi_*`` exist for
    latency-sensitive workloads only and count since the cgroup was created. ``memory_bytes`` is the
    memory charged to the cgroup now (memory.current), ``io_bytes`` counts reads from and writes to
    disks. ``refaults`` counts pages that were read again after the kernel had dropped them, and
    ``memory_limit_hits`` how often limits of the workload itself were reached; both only for
    services whose profile has an indicator of memory. ``disk_requests`` counts reads from disks and
    those writes for which a task waits, ``disk_wait_ns`` is their time, ``disk_inflicted_ns`` the
    part of it in which the disk worked for best-effort; only where a profile has an indicator of
    disks. ``requests_by_disk`` counts all requests of a latency-sensitive workload to each disk
    that it ever used (io.stat of v2), where a profile has such an indicator.
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
    wait_host_ns: int | None = None
    refaults: int | None = None
    memory_limit_hits: int | None = None
    disk_requests: int | None = None
    disk_wait_ns: int | None = None
    disk_inflicted_ns: int | None = None
    requests_by_disk: tuple[DiskRequests, ...] | None = None


class Blame(NamedTuple):
    """Wait that ``culprit`` inflicted on ``victim``, in ns since the pair is listed.

    A pair whose counter does not grow for a minute may be left out; when it is listed again, it
    starts at zero.

    A ``culprit`` of ``None`` is not a workload: when ``known``, it is system work outside all
    workloads, otherwise time that the probe could not attribute. A culprit that is no workload may
    also be one of ``Snapshot.outside``.
    """

    victim: CgroupId
    culprit: CgroupId | None
    known: bool
    wait_ns: int


class Outside(NamedTuple):
    """A cgroup outside all workloads that ``Blame`` may name as a culprit; ``path`` is its path."""

    cgroup: CgroupId
    path: str


class ServiceReading(NamedTuple):
    """A figure that a service reports itself: request latency in ns, or any number.

    ``age_ns`` is the age of the value; ``None`` when the source is dead, that is, it has never
    answered or its last answer is too old. A value of ``None`` with an age is an answer: the
    service had no requests.
    """

    service: str
    value: float | None
    age_ns: int | None


class LinkSample(NamedTuple):
    """One tier of a shaped link in one direction; counters since the tier was created.

    ``link`` is the target of ``Knob.TC_TREE``, ``tier`` one of ``system``, ``latency-sensitive``,
    ``best-effort``. Bytes are counted by the qdisc, with the link header.
    """

    link: "Target"
    ingress: bool
    tier: str
    sent_bytes: int
    sent_packets: int
    drops: int
    backlog_bytes: int


class MemoryUse(NamedTuple):
    """Memory charged to a cgroup and those below it.

    ``used_bytes`` is all of it, ``needed_bytes`` what the kernel cannot reclaim at once: all but
    page cache that is on disk and, on v2, reclaimable slab. There is no swap in either.
    """

    cgroup: CgroupId
    used_bytes: int
    needed_bytes: int


class MemorySample(NamedTuple):
    """The memory of this host, or of the part of it that the configuration names.

    ``available_bytes`` can be allocated without reclaiming anything but caches. ``others_bytes``
    is what everything but ``limited`` needs. ``limited`` are the cgroups of ``Workload.memory_at``,
    as they were read last. ``workloads`` are best-effort workloads, which are read slowly while
    memory is not short.
    """

    available_bytes: int
    others_bytes: int
    limited: tuple[MemoryUse, ...] = ()
    workloads: tuple[MemoryUse, ...] = ()


class KnobReading(NamedTuple):
    """The value of a knob as read from the kernel, with its owner.

    ``original`` is the value that a restore puts back while the agent holds the knob, and ``None``
    while it does not: then ``value`` belongs to another program. The executor decides that for
    every reading; no other component compares values to find out.
    """

    target: Target
    knob: Knob
    value: KnobValue
    original: KnobValue | None = None


class Pause(NamedTuple):
    """What the agent leaves alone in this tick, by order of an administrator.

    ``everything``: every knob has its original value and no workload is evicted. ``services`` are
    measured and not protected. ``workloads`` are names of best-effort workloads, which are not
    changed, or of entries of the configuration, which stand for all workloads of theirs
    (``batch`` for ``batch:one``).
    """

    everything: bool = False
    services: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()

    def covers_service(self, service: str) -> bool:
        """Return whether *service* is not protected now."""
        return self.everything or service in self.services

    def covers_workload(self, name: str) -> bool:
        """Return whether the best-effort workload *name* is not changed now."""
        return self.everything or name in self.workloads or name.partition(":")[0] in self.workloads


class EvictionResult(StrEnum):
    """Result of a requested eviction.

    ``evicted``: the request was accepted and the workload is terminating. ``frozen``, ``killed``:
    done. ``gone``: the workload had ended before. ``refused``: this workload cannot be evicted (a
    disruption budget). ``unanswered``: the request was sent and may have been accepted. ``held``:
    no workload can be evicted now (for example, the API server is unreachable). ``reported``: no
    request was made, because the agent only observes or may not evict on this node.
    """

    EVICTED = "evicted"
    FROZEN = "frozen"
    KILLED = "killed"
    GONE = "gone"
    REFUSED = "refused"
    UNANSWERED = "unanswered"
    HELD = "held"
    REPORTED = "reported"

    @property
    def leaves(self) -> bool:
        """Whether the workload was asked to end, or may have been."""
        return self in (EvictionResult.EVICTED, EvictionResult.UNANSWERED)


class EvictionAnswer(NamedTuple):
    """The answer to one ``Eviction``.

    ``wait_ns`` is a time-out whose meaning depends on the result. ``refused`` and ``frozen``: until
    then this workload is not tried again; ``held`` and ``reported``: until then no workload is
    tried; ``evicted``: the time that the workload may take to end. 0: the policy uses its default.
    """

    cgroup: CgroupId
    channel: Channel
    result: EvictionResult
    message: str
    wait_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All measurements of one instant; counters are cumulative.

    ``age_ns`` is the age of the newest probe data at ``time_ns``; ``None``: the probe is off.
    ``system_oncpu_ns``, ``idle_ns`` and ``steal_ns`` are summed over all CPUs, and so is
    ``unknown_oncpu_ns``: the CPU time of tasks whose workload the probe could not find or has no
    room to count. ``blame`` lists only pairs with a wait. ``core_overlap_ratio`` is the share of
    the services' running time during which best-effort work ran on the other thread of the same
    core. ``pressure_ns`` is the time at which the ``psi_*`` counters and ``refaults`` were
    read, which does not happen in every tick; ``None``: at ``time_ns``. ``evictions`` are the
    answers since the last snapshot. ``pause`` is in force in this tick; ``None``: nothing is
    paused. ``outside`` are cgroups outside all workloads that are measured as culprits; their CPU
    time is a part of ``system_oncpu_ns``. ``left_out_ns`` is how long ticks were left out since the
    last snapshot, because looks found no reason for one. ``memory`` is the same object until it is
    read again; ``None``: not measured. ``shared_cpus`` is a cpulist: the CPUs that kubelet gave to
    no pod alone; empty: it gave none to a pod alone.
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
    unknown_oncpu_ns: int | None = None
    pause: Pause | None = None
    outside: tuple[Outside, ...] = ()
    left_out_ns: int = 0
    memory: MemorySample | None = None
    shared_cpus: str = ""
