# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The sections ``budget:``, ``counters:``, ``history:`` and ``nri:`` of the agent itself.

``budget`` limits the agent's own CPU and memory. ``counters`` selects the perf events that are
counted for every workload. ``history`` limits what is kept on disk. ``nri`` names the socket at
which the container runtime tells of new containers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from controller.config.fields import Quantity, Strict, Text, cpus, duration, raw_default
from controller.core.units import parse_bytes

__all__ = (
    "BudgetConfig",
    "BudgetModel",
    "CountersModel",
    "HistoryConfig",
    "HistoryModel",
    "NriConfig",
    "NriMode",
    "NriModel",
    "build_budget",
    "build_counters",
    "build_history",
    "build_nri",
)

_MEMORY = Quantity(parse_bytes, r"^[0-9]+(\.[0-9]+)? *(kB|MB|GB|KiB|MiB|GiB)$", "1MiB", "64GiB")
_DISK = Quantity(parse_bytes, _MEMORY.pattern, "1MiB", "16GiB")


class BudgetModel(Strict):
    """Over the CPU budget the agent measures less detail; over the memory budget it warns."""

    cpu: Annotated[float, cpus("1mcpu", "1024cpu")] = raw_default("200mcpu")
    """CPU that the agent may use; above it the agent measures less detail."""
    memory: Annotated[int, _MEMORY] = raw_default("192MiB")
    """Memory that the agent may use; above it the agent warns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetConfig:
    """The checked section, in CPUs and bytes."""

    cpus: float
    memory_bytes: int


def build_budget(model: BudgetModel) -> BudgetConfig:
    """Return the checked section."""
    return BudgetConfig(cpus=model.cpu, memory_bytes=model.memory)


# The name of an event in perf. Whether this host has the event is known when the probe is loaded.
_Source = Annotated[
    str, Field(pattern=r"^([a-z][a-z-]{1,31}|r[0-9a-f]{1,16}|[A-Za-z0-9_.-]{1,63}/[^/]{1,255}/)$")
]


class CountersModel(Strict):
    """The source of each counter: ``auto`` (the generic hardware event), ``off`` or an event."""

    cycles: _Source = "auto"
    """Event that counts cycles, for cpi: auto, off or a name as in perf list."""
    instructions: _Source = "auto"
    """Event that counts instructions, for cpi and llc_mpki: auto, off or a name as in perf list."""
    llc_misses: _Source = "auto"
    """Event that counts last-level cache misses, for llc_mpki: auto, off or a name as in perf
    list."""
    llc_references: _Source = "off"
    """Event that counts last-level cache references, for metrics only: auto, off or a name as in
    perf list."""
    stalled_cycles: _Source = "off"
    """Event that counts stalled cycles, for metrics only: auto, off or a name as in perf list."""


def build_counters(model: CountersModel) -> Mapping[str, str]:
    """Return the source of each counter, by field of ``WorkloadSample``."""
    return model.model_dump()


class HistoryModel(Strict):
    """What is kept in ``data_dir`` of past ticks: for ``explain``, ``advise`` and ``replay``."""

    enabled: bool = True
    """Whether the agent keeps a history; without it explain and advise have nothing to tell."""
    max_bytes: Annotated[int, _DISK] = raw_default("64MiB")
    """Most disk space of all files of the history together; the oldest records go first."""
    interval: Annotated[int, duration("1s", "1h")] = raw_default("2s")
    """Shortest time between two snapshots of all counters; lengthen it to keep a longer past."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryConfig:
    """The checked section; ``interval_ns`` is the shortest time between two snapshots."""

    enabled: bool
    max_bytes: int
    interval_ns: int


def build_history(model: HistoryModel) -> HistoryConfig:
    """Return the checked section."""
    return HistoryConfig(
        enabled=model.enabled, max_bytes=model.max_bytes, interval_ns=model.interval
    )


class NriMode(StrEnum):
    """``auto``: only if the socket exists when the agent starts to enforce."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class NriModel(Strict):
    """The plugin of the container runtime that says when a container is about to run."""

    enabled: Annotated[NriMode, Text] = NriMode.AUTO
    """Whether the runtime tells of new containers in enforce mode: auto (if its socket exists), on
    or off."""
    socket: Annotated[str, Field(pattern=r"^/[^\x00]{1,106}$")] = "/var/run/nri/nri.sock"
    """Socket of the runtime's NRI; whoever can open it can change every container."""
    answer_within: Annotated[int, duration("1ms", "1s")] = raw_default("100ms")
    """Longest time that a new container waits for a tick; all containers of the node share it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NriConfig:
    """The checked section; ``answer_within_ns`` is the longest wait of a container."""

    enabled: NriMode
    socket: str
    answer_within_ns: int


def build_nri(model: NriModel) -> NriConfig:
    """Return the checked section."""
    return NriConfig(
        enabled=model.enabled, socket=model.socket, answer_within_ns=model.answer_within
    )
