# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The configuration as the pure core sees it: profiles, and the facts of the machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from controller.core.model import Channel, IndicatorName, Knob, Mode, Target

__all__ = (
    "CoreMode",
    "CoreSettings",
    "DiskFacts",
    "DiskSpec",
    "EvictionLimits",
    "Gains",
    "HostFacts",
    "IndicatorSpec",
    "KnobLimits",
    "LinkFacts",
    "LoadBin",
    "MbaUnit",
    "Profile",
    "ResctrlFacts",
    "SafeState",
    "Settings",
)


class EvictionLimits(NamedTuple):
    """How many may be evicted on this node in an hour, and the shortest time between two."""

    per_hour: int = 3
    cool_down_ns: int = 60_000_000_000


class SafeState(StrEnum):
    """What to hold when the data is dead."""

    STATIC = "static"
    RESTORE = "restore"
    FLOOR = "floor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """PID gains per unit of deviation: proportional, integral time and derivative time."""

    kp: float
    ti_s: float
    td_s: float


class LoadBin(NamedTuple):
    """The sweet point of a workload that runs ``above_cpus`` CPUs or more."""

    above_cpus: float
    sweet_point: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IndicatorSpec:
    """A sweet point: the value that an indicator should not exceed, and how to steer to it.

    ``tolerance`` is the factor over the sweet point that counts as deviation 1,
    ``resolution`` the smallest value worth telling apart, ``dead_zone`` the half-width of the
    zone around deviation 0 in which nothing moves, ``window_ns`` what the value is taken over
    and ``filter_ns`` the time constant of the low-pass behind it. ``bins``, by rising load,
    replace the sweet point where it moves with the load, as that of CPI does. ``is_time``: the
    unit of sweet point and resolution is ns.
    """

    name: IndicatorName
    sweet_point: float
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobLimits:
    """How far and how fast a graded knob may be moved.

    ``floor`` is in the knob's unit: CPUs of each best-effort workload for cpu.quota, bytes of
    each for memory.high, ways for resctrl.l3, a weight for io.weight, a share of what there is
    for resctrl.mb, tc.ceiling and io.max. ``squeeze`` and ``release`` are the largest steps of
    demand per second and per release, of the knob's part of its channel's demand.
    """

    floor: float
    squeeze_per_s: float
    release_step: float
    release_spacing_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """An administrator's numbers for one type of service.

    ``channels`` are those on which best-effort may be squeezed for it. ``cpu_burst_us`` is what
    the service may save up of a quota of its own; 0: nothing is changed.
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


class MbaUnit(StrEnum):
    """What the number in an ``MB:`` line of schemata means."""

    PERCENT = "percent"  # Intel: throttling, only roughly linear
    ABSOLUTE = "absolute"  # AMD: multiples of 1/8 GB/s
    MBPS = "mbps"  # mounted with mba_MBps: the kernel's own loop


class ResctrlFacts(NamedTuple):
    """What ``info/`` of a resctrl mount says; 0 in ``mba_max`` or ``llc_ways``: not there.

    ``domains`` are the cache ids in schemata. MBA values are in ``mba_unit``; ``llc_ways`` is
    the width of the mask and ``llc_min_ways`` the fewest contiguous bits. ``bandwidth`` tells
    whether the memory bandwidth can be measured.
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
    """A link that we shape: what it carries in each direction, bytes per second."""

    target: Target
    egress_bytes_per_s: float
    ingress_bytes_per_s: float


class DiskSpec(NamedTuple):
    """A disk, ``/dev/NAME`` or ``MAJOR:MINOR``, and what it carries in bytes per second."""

    device: str
    read_bytes_per_s: int
    write_bytes_per_s: int


class DiskFacts(NamedTuple):
    """A disk that io.max may limit, ``MAJOR:MINOR``, and what it carries, bytes per second."""

    device: str
    read_bytes_per_s: float
    write_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What the pure core must know of the machine."""

    cpus: int
    resctrl: ResctrlFacts | None = None
    links: tuple[LinkFacts, ...] = ()
    memory_bytes: int | None = None
    disks: tuple[DiskFacts, ...] = ()


class CoreMode(StrEnum):
    """When best-effort work gets a core-scheduling cookie, so that no service shares its core.

    ``auto``: when sharing cores is measured, the cache channel demands it, and it helps. ``on``:
    as long as a service is present.
    """

    OFF = "off"
    AUTO = "auto"
    ON = "on"


class CoreSettings(NamedTuple):
    """How cookies are used: from which overlap on, and how long they may take to prove useful."""

    mode: CoreMode = CoreMode.OFF
    overlap_min: float = 0.1
    verify_ns: int = 30_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole configuration as the pure core sees it, without workloads.

    ``mode`` tells the planner whether its actions are written: in observe mode it goes on as
    if they had been.
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
