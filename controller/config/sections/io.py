# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``io``: disks on which best-effort work is limited, and classes of other workloads.

The limits of best-effort work are in profiles, because they move. Those of a class stay.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from controller.config.fields import Quantity, Strict, raw_default
from controller.config.sections.pod_classes import (
    CLASS_NAME,
    KoordinatorClass,
    find_claimed_twice,
)
from controller.config.yaml_document import Document, Loc
from controller.core.settings import DiskLimits, DiskSpec, IoSettings
from controller.core.units import UnitError, parse_bytes

__all__ = ("IoClassConfig", "IoModel", "build_io", "build_io_classes")

_DEVICE = Field(pattern=r"^(/dev/[A-Za-z0-9][A-Za-z0-9._/-]*|[0-9]{1,4}:[0-9]{1,7})$")


def _parse_rate(text: str) -> int:
    size, slash, second = text.partition("/")
    if not slash or second.strip() != "s":
        raise UnitError(f"{text!r} is not a rate such as 500MB/s")
    return parse_bytes(size)


_RATE_PATTERN = r"^[0-9]+(\.[0-9]+)? *(k|M|G|Ki|Mi|Gi|Ti)B */ *s$"
_RATE = Quantity(_parse_rate, _RATE_PATTERN, "1MB/s", "1000GB/s")
_LIMIT = Quantity(_parse_rate, _RATE_PATTERN, "1kB/s", "1000GB/s")
_REQUESTS = Field(ge=1, le=10**9)


class DiskModel(Strict):
    """The bandwidth of a disk, of which limits are a share."""

    read: Annotated[int, _RATE]
    """Bytes per second that the disk can read, such as 2GB/s; limits are shares of it."""
    write: Annotated[int, _RATE]
    """Bytes per second that the disk can write, such as 1GB/s; limits are shares of it."""


class DiskLimitModel(Strict):
    """What each workload of a class may do on one disk; a limit that is not given is none."""

    read: Annotated[int, _LIMIT] | None = None
    """Bytes per second that a workload of the class may read from the disk, such as 200MB/s."""
    write: Annotated[int, _LIMIT] | None = None
    """Bytes per second that a workload of the class may write to the disk, such as 100MB/s."""
    read_iops: Annotated[int, _REQUESTS] | None = None
    """Reads per second that a workload of the class may make from the disk."""
    write_iops: Annotated[int, _REQUESTS] | None = None
    """Writes per second that a workload of the class may make to the disk."""


class IoClassModel(Strict):
    """Weight and limits for disks of one class of services or system workloads; cgroup v2."""

    weight: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Share of a busy disk (io.weight; 100 is usual), on disks with iocost only; without it the
    weight stays."""
    limits: dict[Annotated[str, _DEVICE], DiskLimitModel] = raw_default({})
    """Limits of each workload (io.max) by disk, as in disks; other disks have no limit."""
    koordinator: list[KoordinatorClass] = raw_default([])
    """Values of the label koordinator.sh/qosClass, or defaults of koordlet without it, whose pods
    have this class."""
    annotation: bool = False
    """Whether a pod may choose this class by blockio.resources.beta.kubernetes.io/pod."""


class IoModel(Strict):
    """The disks on which best-effort work may be limited, and classes of services."""

    find: bool = raw_default(default=True)
    """Limit best-effort work on all disks of the host; false: on those of disks only."""
    disks: dict[Annotated[str, _DEVICE], DiskModel] = raw_default({})
    """Disks with a known bandwidth, by path such as /dev/nvme0n1 or by number such as 259:0."""
    iocost: Literal["auto", "off"] = "off"
    """Whether iocost (io.cost.qos of the host) is enabled on disks that services and best-effort
    work share, so that io.weight counts."""
    classes: dict[Annotated[str, CLASS_NAME], IoClassModel] = raw_default({})
    """Fixed weights and limits for disks by the name of a class, for services and system
    workloads on cgroup v2."""


class IoClassConfig(NamedTuple):
    """A class: its fixed weight and limits, and the pods that have it besides those of profiles.

    ``weight``: io.weight; ``None``: not changed. ``koordinator`` are values of Koordinator's label.
    ``annotation``: a pod may choose the class.
    """

    name: str
    weight: int | None = None
    limits: tuple[DiskLimits, ...] = ()
    koordinator: frozenset[str] = frozenset()
    annotation: bool = False


def build_io(model: IoModel) -> IoSettings:
    """Return the disks of the section ``io``, bandwidths in bytes per second."""
    disks: Mapping[str, DiskModel] = model.disks
    known = (DiskSpec(name, disk.read, disk.write) for name, disk in disks.items())
    return IoSettings(tuple(known), model.find, model.iocost == "auto")


def build_io_classes(
    document: Document, model: IoModel, problems: list[str]
) -> tuple[IoClassConfig, ...]:
    """Return the classes of the section ``io``; what contradicts itself goes to *problems*."""
    classes = tuple(
        IoClassConfig(
            name=name,
            weight=each.weight,
            limits=tuple(
                DiskLimits(device, limit.read, limit.write, limit.read_iops, limit.write_iops)
                for device, limit in each.limits.items()
            ),
            koordinator=frozenset(each.koordinator),
            annotation=each.annotation,
        )
        for name, each in model.classes.items()
    )
    for each in classes:
        problems += (document.problem(loc, text) for loc, text in _find_empty(each))
    problems += find_claimed_twice(document, "io", classes)
    return classes


def _find_empty(given: IoClassConfig) -> Iterator[tuple[Loc, str]]:
    loc: Loc = ("io", "classes", given.name)
    if given.weight is None and not given.limits:
        yield loc, "must have a weight or limits"
    for device, *limits in given.limits:
        if not any(limits):
            yield (*loc, "limits", device), "must have at least one limit"
