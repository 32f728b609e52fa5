# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The sections ``memory`` and ``core_scheduling``: settings of single knobs.

The limits of graded knobs (floor, speed) are in profiles; these sections are about the host.
"""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from controller.config.fields import RATIO, Quantity, Strict, Text, duration, raw_default
from controller.core.settings import CoreMode, CoreSettings, MemoryGuard
from controller.core.units import parse_bytes

__all__ = (
    "CORE_GROUP",
    "CoreSchedulingModel",
    "MemoryAmount",
    "MemoryModel",
    "build_core_scheduling",
    "build_memory",
)

# Name of a group of core scheduling; also valid as the value of a Kubernetes label.
CORE_GROUP = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")


_MEMORY_PATTERN = r"^[0-9]+(\.[0-9]+)? *(B|kB|MB|GB|KiB|MiB|GiB|TiB)$"
_MEMORY = Quantity(parse_bytes, _MEMORY_PATTERN, "1MiB", "64TiB")


def _amount_kind(value: object) -> str:
    return "<auto>" if value == "auto" else "<amount>"


MemoryAmount = Annotated[
    Annotated[Literal["auto"], Tag("<auto>")] | Annotated[int, _MEMORY, Tag("<amount>")],
    Discriminator(_amount_kind),
]


class MemoryModel(Strict):
    """The memory guard, which keeps best-effort work from taking memory that others need."""

    guard: bool = True
    """Whether best-effort work is limited to the memory that everything else leaves, and ended
    first when memory runs out; in enforce mode only."""
    margin: MemoryAmount = "auto"
    """Memory that best-effort work leaves free; auto takes 3 %, or more for the kernel's reclaim
    and kubelet's eviction."""
    capacity: MemoryAmount = "auto"
    """Memory that the workloads share: auto is that of the host; set it where a cgroup above all of
    them has a limit."""


def build_memory(model: MemoryModel) -> MemoryGuard | None:
    """Return the checked section ``memory``; ``None``: the guard is off."""
    margin = None if model.margin == "auto" else model.margin
    capacity = None if model.capacity == "auto" else model.capacity
    return MemoryGuard(margin, capacity) if model.guard else None


class CoreSchedulingModel(Strict):
    """When best-effort work gets a core-scheduling cookie, and when the cookie is verified."""

    mode: Annotated[CoreMode, Text] = CoreMode.AUTO
    """When best-effort work has cookies: auto while shared cores hurt services, on always, off
    never."""
    overlap: Annotated[float, RATIO] = raw_default("10%")
    """Share of the services' running time on shared cores from which auto tries cookies."""
    verify: Annotated[int, duration("5s", "1h")] = raw_default("30s")
    """Time within which cookies must improve the services' deviation; otherwise auto takes them
    away."""


def build_core_scheduling(model: CoreSchedulingModel) -> CoreSettings:
    """Return the checked section ``core_scheduling``."""
    return CoreSettings(mode=model.mode, overlap_min=model.overlap, verify_ns=model.verify)
