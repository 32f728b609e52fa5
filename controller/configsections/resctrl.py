# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``resctrl:``, memory bandwidth and cache ways of best-effort work."""

from typing import Annotated, NamedTuple

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from controller.configfields import Strict

__all__ = ("ResctrlConfig", "ResctrlModel", "build_resctrl")

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
