# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Configuration of the core: settings, profiles, and facts of the machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from controller.core.model import (
    Channel,
    IndicatorName,
    Knob,
    KnobValue,
    Mode,
    QosClass,
    Target,
    Workload,
)

__all__ = (
    "DEAD_ZONE",
    "CoreMode",
    "CoreSettings",
    "DiskFacts",
    "DiskLimits",
    "DiskSpec",
    "EvictionLimits",
    "Gains",
    "HostFacts",
    "IndicatorSpec",
    "IoClass",
    "IoSettings",
    "KnobLimits",
    "LawSettings",
    "LinkFacts",
    "LoadBin",
    "MbaUnit",
    "MemoryGuard",
    "MicroProbeLimits",
    "Profile",
    "ResctrlFacts",
    "SafeState",
    "Settings",
    "io_class_of",
)

# The usual half-width of the dead zone around deviation 0, in which a loop keeps its demand. From
# its lower end on a service is near its sweet point, from its upper end on the service suffers, and
# a smaller fall of the deviation is no help.
DEAD_ZONE = 0.1


class EvictionLimits(NamedTuple):
    """Largest number of evictions on this node in an hour, and the shortest time between two."""

    per_hour: int = 3
    cool_down_ns: int = 60_000_000_000


class SafeState(StrEnum):
    """State of the knobs while the data is stale.

    ``static``: sched-idle stays, the other knobs get their original values. ``restore``: all knobs
    get their original values. ``floor``: sched-idle stays, the graded knobs are at their floors.
    """

    STATIC = "static"
    RESTORE = "restore"
    FLOOR = "floor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """PID gains per unit of deviation: proportional gain, integral and derivative time."""

    kp: float
    ti_s: float
    td_s: float


class LoadBin(NamedTuple):
    """The sweet point of a workload whose load is ``above`` or more.

    The load is in CPUs, for ``cpu_per_packet`` in packets per second.
    """

    above: float
    sweet_point: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IndicatorSpec:
    """A sweet point (the value that an indicator should not exceed) and its control parameters.

    ``sweet_point`` and ``resolution`` are in the unit of the indicator (``decision.Indicator``);
    ``is_time``: that unit is ns. ``tolerance`` is the factor over the sweet point that counts as
    deviation 1 (above 1), ``resolution`` the smallest difference of values that
    matters, ``dead_zone`` the half-width of the zone around deviation 0 in which the demand does
    not move. ``window_ns`` is the window over which the value is computed, ``filter_ns`` the time
    constant of the low-pass after it, ``min_samples`` the fewest events behind a value. ``bins``,
    by rising load, replace the sweet point where it depends on the load, as that of CPI does.
    ``learn``: the sweet point is learned, and ``sweet_point`` holds until that is sure; ``None``:
    nothing does. The learned one lies the ratio ``allow`` above what is normal and, where the
    profile has a number, not below ``least``. ``objective``: what
    every single figure of the service must not exceed; the sweet point follows from it and the
    scatter of the figure.
    """

    name: IndicatorName
    sweet_point: float | None
    tolerance: float
    resolution: float
    dead_zone: float
    window_ns: int
    filter_ns: int
    min_samples: int
    channel: Channel
    gains: Gains
    bins: tuple[LoadBin, ...] = ()
    is_time: bool = False
    learn: bool = False
    allow: float = 0.0
    least: float = 0.0
    objective: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobLimits:
    """How far and how fast a graded knob may be moved.

    ``floor`` is in the unit of the knob: CPUs of each best-effort workload for cpu.quota, bytes of
    each for memory.high, ways for resctrl.l3, a weight for io.weight, a share of the capacity for
    resctrl.mb, tc.ceiling and io.max. ``squeeze_per_s`` is the largest rise per second and
    ``release_step`` the largest fall per ``release_spacing_ns``, both of the knob's part of its
    channel's demand.
    """

    floor: float
    squeeze_per_s: float
    release_step: float
    release_spacing_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The numbers that an administrator sets for one type of service.

    ``channels`` are those on which best-effort work may be squeezed for the service.
    ``cpu_burst_us`` is the part of its own unused quota that the service may accumulate; 0: its
    burst is not changed. ``resctrl_class`` names the class with the service's cache ways and memory
    bandwidth, ``io_class`` that with its weight and limits for disks; empty: none.
    ``be_share_min`` is the smallest share of best-effort work in the cause that counts as evidence.
    Below ``idle_oncpu_ratio`` CPUs the service is idle.
    """

    name: str
    indicators: tuple[IndicatorSpec, ...]
    sched_idle: bool
    be_share_min: float
    idle_oncpu_ratio: float
    limits: Mapping[Knob, KnobLimits] = field(default_factory=dict)
    channels: tuple[Channel, ...] = tuple(Channel)
    cpu_burst_us: int = 0
    evict_enabled: bool = False
    evict_after_ns: int = 60_000_000_000
    resctrl_class: str = ""
    io_class: str = ""

    @property
    def service_knobs(self) -> frozenset[Knob]:
        """Knobs that the profile sets of the service's own workloads, all in ``SERVICE_KNOBS``."""
        return frozenset({Knob.CPU_QUOTA}) if self.cpu_burst_us else frozenset()


class MbaUnit(StrEnum):
    """Unit of the number in an ``MB:`` line of schemata."""

    PERCENT = "percent"  # Intel: throttling, only roughly linear
    ABSOLUTE = "absolute"  # AMD: multiples of 1/8 GB/s
    MBPS = "mbps"  # mounted with mba_MBps: the kernel controls the bandwidth itself


class ResctrlFacts(NamedTuple):
    """Contents of ``info/`` of a resctrl mount.

    ``mba_max`` or ``llc_ways`` of 0: the resource does not exist. ``domains`` are the cache ids in
    schemata. MBA values are in ``mba_unit``; ``llc_ways`` is the width of the mask of cache ways
    and ``llc_min_ways`` the fewest contiguous bits. ``bandwidth``: the memory bandwidth can be
    measured.
    """

    domains: tuple[int, ...]
    mba_unit: MbaUnit = MbaUnit.PERCENT
    mba_min: int = 0
    mba_max: int = 0
    mba_step: int = 1
    llc_ways: int = 0
    llc_min_ways: int = 1
    bandwidth: bool = False


class LinkFacts(NamedTuple):
    """A link that the agent shapes, and its capacity in each direction in bytes per second."""

    target: Target
    egress_bytes_per_s: float
    ingress_bytes_per_s: float


class DiskSpec(NamedTuple):
    """A disk of the configuration (``/dev/NAME`` or ``MAJOR:MINOR``), capacity in bytes/s."""

    device: str
    read_bytes_per_s: int
    write_bytes_per_s: int


class IoSettings(NamedTuple):
    """Disks of known capacity, and whether all others of the host are limited as well.

    ``iocost``: whether the agent enables iocost on shared disks.
    """

    disks: tuple[DiskSpec, ...] = ()
    find: bool = True
    iocost: bool = False


class DiskLimits(NamedTuple):
    """Limits of a class on one disk of the configuration, see ``DiskSpec``; ``None``: no limit.

    Bytes per second and requests per second, in the order of the kernel (``IO_MAX_KINDS``).
    """

    device: str
    rbps: int | None = None
    wbps: int | None = None
    riops: int | None = None
    wiops: int | None = None


class IoClass(NamedTuple):
    """What each workload of a class has for disks, all the time.

    ``weight``: io.weight; ``None``: not changed. ``limits``: the limits of io.max that it has, with
    the numbers of the disks. ``problem``: what of that has no effect on this host; may be empty.
    """

    weight: int | None = None
    limits: KnobValue = KnobValue("max")
    problem: str = ""

    @property
    def knobs(self) -> frozenset[Knob]:
        """The knobs that the class sets, all in ``CLASS_KNOBS``."""
        weight = () if self.weight is None else (Knob.IO_WEIGHT,)
        return frozenset(weight if self.limits == "max" else (*weight, Knob.IO_MAX))


class DiskFacts(NamedTuple):
    """A disk that io.max may limit (``MAJOR:MINOR``), and its capacity in bytes per second.

    ``None``: the capacity is not known.
    """

    device: str
    read_bytes_per_s: float | None = None
    write_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Facts of the machine that the core needs; ``None``: the resource cannot be controlled.

    ``io_weight``: some disk follows io.weight, or may. ``cpu_model`` is the name of the CPU; empty:
    not known. ``high_watermark_bytes`` is what the kernel keeps free when it reclaims; 0: not
    known.
    """

    cpus: int
    resctrl: ResctrlFacts | None = None
    links: tuple[LinkFacts, ...] = ()
    memory_bytes: int | None = None
    disks: tuple[DiskFacts, ...] = ()
    io_weight: bool = True
    cpu_model: str = ""
    high_watermark_bytes: int = 0


class CoreMode(StrEnum):
    """When best-effort work gets a core-scheduling cookie, which keeps it off services' cores.

    ``auto``: when services are measured to share cores with it, the cache channel has a demand, and
    the cookie helps. ``on``: while a service is present.
    """

    OFF = "off"
    AUTO = "auto"
    ON = "on"


class CoreSettings(NamedTuple):
    """Parameters of core scheduling.

    ``overlap_min`` is the smallest ``Snapshot.core_overlap_ratio`` that justifies cookies,
    ``verify_ns`` the time within which they must improve the deviation.
    """

    mode: CoreMode = CoreMode.OFF
    overlap_min: float = 0.1
    verify_ns: int = 30_000_000_000


class MemoryGuard(NamedTuple):
    """The memory guard, see ``core.memory``.

    ``margin_bytes`` stays free of best-effort work; ``None``: by the facts of the host. The
    workloads share ``capacity_bytes``; ``None``: with everything else, the memory of this host.
    """

    margin_bytes: int | None = None
    capacity_bytes: int | None = None


class MicroProbeLimits(NamedTuple):
    """Bounds of micro-probes of a best-effort workload; none with ``per_minute`` 0.

    A probe takes ``depth_ratio`` of what the workload uses, for ``length_ns``.
    """

    depth_ratio: float = 0.7
    length_ns: int = 400_000_000
    per_minute: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LawSettings:
    """Switches of parts of the control law, to measure what each of them brings.

    All of them are off by default and on in a configuration file that does not name them: the
    settings of an old recording lack them, and its plans were computed without them.

    ``cut_by_signal``: the cut that the cache channel demands is shared by memory traffic, not by
    waits for a CPU. ``fast_release``: a squeeze that no longer shows an effect is released within
    seconds. ``fast_rise``: a squeeze that brings nothing yet rises ever faster.
    ``verify_squeeze``: one to the stop that brought nothing is let go on trial, and one that helps
    but does not bring the service to its sweet point.
    ``find_harm``: the harm of a workload to a service is estimated from what they do, with
    ``micro_probes``, as evidence and to share the cut of the cache channel.
    ``margin_by_scatter``: the distance of a sweet point from an objective follows the scatter of
    the service's figure. ``spare_harmless``: of the workloads below a quota those that do no harm
    get the CPUs that the others leave. ``rungs_by_work``: a squeeze of the cache channel
    begins with the quota; cache ways and memory bandwidth come first where it fails.
    """

    cut_by_signal: bool = False
    fast_release: bool = False
    fast_rise: bool = False
    verify_squeeze: bool = False
    find_harm: bool = False
    margin_by_scatter: bool = False
    spare_harmless: bool = False
    rungs_by_work: bool = False
    micro_probes: MicroProbeLimits = field(default_factory=MicroProbeLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole configuration of the core, without workloads.

    ``mode`` states whether the actions of the planner are written. In observe mode the planner
    continues as if they had been. ``memory``: the memory guard; ``None``: it is off. ``io_classes``
    are by name.
    """

    tick_ns: int
    host: HostFacts
    profiles: Mapping[str, Profile]
    reserve_cpus: float
    safe_state: SafeState
    stale_ticks: int
    mode: Mode = Mode.OBSERVE
    core: CoreSettings = field(default_factory=CoreSettings)
    eviction: EvictionLimits = field(default_factory=EvictionLimits)
    law: LawSettings = field(default_factory=LawSettings)
    memory: MemoryGuard | None = None
    io_classes: Mapping[str, IoClass] = field(default_factory=dict)


def io_class_of(workload: Workload, profiles: Mapping[str, Profile]) -> str:
    """Return the name of the class of *workload* for disks; empty: none.

    Best-effort work has none, because the loop moves its weight and limits.
    """
    if workload.qos is QosClass.BE:
        return ""
    profile = profiles.get(workload.profile)
    return workload.io_class or ("" if profile is None else profile.io_class)
