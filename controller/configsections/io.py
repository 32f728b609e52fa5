# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``io:``, which disks may be limited and what they carry."""

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from pydantic import Field

from controller.configfields import Quantity, Strict, written
from controller.units import UnitError, parse_bytes

__all__ = ("DiskConfig", "IoModel", "build_io")

_DEVICE = r"^(/dev/[A-Za-z0-9][A-Za-z0-9._/-]*|[0-9]{1,4}:[0-9]{1,7})$"


class DiskConfig(NamedTuple):
    """A disk, ``/dev/NAME`` or ``MAJOR:MINOR``, and what it carries in bytes per second."""

    device: str
    read_bytes_per_s: int
    write_bytes_per_s: int


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


def build_io(model: IoModel) -> tuple[DiskConfig, ...]:
    """Return the checked section."""
    disks: Mapping[str, DiskModel] = model.disks
    return tuple(DiskConfig(name, disk.read, disk.write) for name, disk in disks.items())
