# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``core_scheduling:``, when best-effort work is kept off the cores of services.

The section ``io:``, which disks may be limited and what they carry.

The section ``resctrl:``, memory bandwidth and cache ways of best-effort work.
"""

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from controller.config.fields import RATIO, Quantity, Strict, Text, duration, written
from controller.core.settings import CoreMode, CoreSettings, DiskSpec
from controller.core.units import UnitError, parse_bytes

__all__ = (
    "CORE_GROUP",
    "CoreSchedulingModel",
    "IoModel",
    "ResctrlConfig",
    "ResctrlModel",
    "build_core_scheduling",
    "build_io",
    "build_resctrl",
)

# A group's name, as a Kubernetes label can have it.
CORE_GROUP = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")


class CoreSchedulingModel(Strict):
    """When best-effort work gets a core-scheduling cookie, and how that must prove itself."""

    mode: Annotated[CoreMode, Text] = CoreMode.AUTO
    overlap: Annotated[float, RATIO] = written("10%")
    verify: Annotated[int, duration("5s", "1h")] = written("30s")


def build_core_scheduling(model: CoreSchedulingModel) -> CoreSettings:
    """Return the checked section."""
    return CoreSettings(mode=model.mode, overlap_min=model.overlap, verify_ns=model.verify)


_DEVICE = r"^(/dev/[A-Za-z0-9][A-Za-z0-9._/-]*|[0-9]{1,4}:[0-9]{1,7})$"


def _parse_rate(text: str) -> int:
    size, slash, second = text.partition("/")
    if not slash or second.strip() != "s":
        raise UnitError(f"{text!r} is not a rate such as 500MB/s")
    return parse_bytes(size)


_RATE = Quantity(
    _parse_rate, r"^[0-9]+(\.[0-9]+)? *(k|M|G|Ki|Mi|Gi|Ti)B */ *s$", "1MB/s", "1000GB/s"
)


class DiskModel(Strict):
    """What a disk carries."""

    read: Annotated[int, _RATE]
    write: Annotated[int, _RATE]


class IoModel(Strict):
    """Which disks may be limited."""

    disks: dict[Annotated[str, Field(pattern=_DEVICE)], DiskModel] = written({})


def build_io(model: IoModel) -> tuple[DiskSpec, ...]:
    """Return the checked section."""
    disks: Mapping[str, DiskModel] = model.disks
    return tuple(DiskSpec(name, disk.read, disk.write) for name, disk in disks.items())


_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
# What the file system itself has in its root directory.
_TAKEN = frozenset({"info", "mon_data", "mon_groups"})


class ResctrlConfig(NamedTuple):
    """How resctrl is used.

    ``group`` is the control group of best-effort work, made and removed by us unless
    ``adopted``: then it is somebody else's, only its limits are moved, and who runs in it is
    theirs to say. ``manage``: limits may be set at all; ``monitor``: occupancy and bandwidth are
    measured, in groups of which ``rmid_reserve`` are left to others.
    """

    manage: bool
    mount: bool
    group: str
    adopted: bool
    monitor: bool
    rmid_reserve: int


class ResctrlModel(Strict):
    """Memory bandwidth and cache ways of best-effort work."""

    manage: bool = True
    mount: bool = False
    group: Annotated[str, Field(pattern=rf"^sweetpoint-{_NAME}$")] = "sweetpoint-best-effort"
    adopt: Annotated[str, Field(pattern=rf"^{_NAME}$")] | None = None
    monitor: bool = True
    rmid_reserve: Annotated[int, Field(ge=0, le=100_000)] = 4

    @field_validator("adopt")
    @classmethod
    def _no_name_of_the_kernel(cls, value: str | None) -> str | None:
        if value in _TAKEN:
            raise PydanticCustomError("group", "is not a control group but the kernel's own")
        return value


def build_resctrl(model: ResctrlModel) -> ResctrlConfig:
    """Return the checked section."""
    return ResctrlConfig(
        manage=model.manage,
        mount=model.mount,
        group=model.adopt or model.group,
        adopted=model.adopt is not None,
        monitor=model.monitor,
        rmid_reserve=model.rmid_reserve,
    )
