# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``resctrl``: the control group of best-effort work, and classes of other workloads.

The limits of best-effort work are in profiles, because they move. Those of a class stay.
"""

from typing import Annotated, NamedTuple

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from controller.config.fields import RATIO, RATIO_OF_LIMIT, Strict, raw_default
from controller.config.sections.pod_classes import (
    CLASS_NAME,
    KoordinatorClass,
    find_claimed_twice,
)
from controller.config.yaml_document import Document, Loc

__all__ = (
    "ResctrlClass",
    "ResctrlConfig",
    "ResctrlModel",
    "build_resctrl",
)

_PREFIX = "sweetpoint-"
_GROUP_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
# Directories of the kernel in the root of the resctrl file system.
_KERNEL_DIRECTORIES = frozenset({"info", "mon_data", "mon_groups"})


class ResctrlClassModel(Strict):
    """Cache ways and memory bandwidth of one class of services or system workloads."""

    l3: Annotated[list[Annotated[float, RATIO]], Field(min_length=2, max_length=2)] = raw_default(
        ["0%", "100%"]
    )
    """Begin and end of the class's part of the cache ways; parts of two classes may overlap."""
    mb: Annotated[float, RATIO_OF_LIMIT] = raw_default("100%")
    """Most memory bandwidth, as a share of the hardware's scale; 100% is no limit."""
    koordinator: list[KoordinatorClass] = raw_default([])
    """Values of the label koordinator.sh/qosClass, or defaults of koordlet without it, whose pods
    have this class."""
    annotation: bool = False
    """Whether a pod may choose this class by rdt.resources.beta.kubernetes.io/pod."""

    @field_validator("l3")
    @classmethod
    def _check_range(cls, value: list[float]) -> list[float]:
        if value[0] >= value[1]:
            raise PydanticCustomError("range", "must begin below its end, such as [0%, 50%]")
        return value


class ResctrlModel(Strict):
    """Memory bandwidth and cache ways of best-effort work, and of classes of other workloads."""

    manage: bool = True
    """Whether cache ways and memory bandwidth of best-effort work may be changed."""
    mount: bool = False
    """Whether the agent mounts /sys/fs/resctrl where it is not mounted, also when only
    observing."""
    group: Annotated[str, Field(pattern=rf"^{_PREFIX}{_GROUP_NAME}$")] = f"{_PREFIX}best-effort"
    """Control group of best-effort work, which the agent makes and removes."""
    adopt: Annotated[str, Field(pattern=rf"^{_GROUP_NAME}$")] | None = None
    """Control group of another program, such as a container runtime, whose limits the agent
    changes instead."""
    monitor: bool = True
    """Whether cache occupancy and memory bandwidth are measured per workload, in monitoring
    groups."""
    rmid_reserve: Annotated[int, Field(ge=0, le=100_000)] = 4
    """Monitoring ids that stay free for other programs."""
    classes: dict[Annotated[str, CLASS_NAME], ResctrlClassModel] = raw_default({})
    """Fixed limits by the name of a class, for services and system workloads; each class with a
    workload takes a control group."""

    @field_validator("adopt")
    @classmethod
    def _check_adopt(cls, value: str | None) -> str | None:
        if value in _KERNEL_DIRECTORIES:
            raise PydanticCustomError("group", "is a directory of the kernel, not a control group")
        return value


class ResctrlClass(NamedTuple):
    """A class: its fixed limits, and the pods that have it besides those of profiles.

    ``begin_ratio`` and ``end_ratio`` are its part of the cache ways, ``bandwidth_ratio`` that of
    the scale of memory bandwidth. ``koordinator`` are values of Koordinator's label.
    ``annotation``: a pod may choose the class.
    """

    name: str
    begin_ratio: float
    end_ratio: float
    bandwidth_ratio: float
    koordinator: frozenset[str] = frozenset()
    annotation: bool = False

    @property
    def group(self) -> str:
        """The control group of the class."""
        return f"{_PREFIX}{self.name}"


class ResctrlConfig(NamedTuple):
    """The checked section ``resctrl``.

    ``manage``: the limits of best-effort work may be changed. ``mount``: the file system may be
    mounted. ``group`` is the control group of best-effort work. The agent creates and removes the
    group and assigns its tasks, unless ``adopted``: then the group belongs to another program,
    and the agent changes only its limits. ``monitor``: occupancy and bandwidth are measured, in
    monitoring groups; ``rmid_reserve`` RMIDs are left free for other programs.
    """

    manage: bool
    mount: bool
    group: str
    adopted: bool
    monitor: bool
    rmid_reserve: int
    classes: tuple[ResctrlClass, ...] = ()

    @property
    def own_groups(self) -> frozenset[str]:
        """The control groups that the agent makes."""
        ours = {each.group for each in self.classes}
        return frozenset(ours if self.adopted else ours | {self.group})


def build_resctrl(document: Document, model: ResctrlModel, problems: list[str]) -> ResctrlConfig:
    """Return the checked section ``resctrl``; contradictions of its classes go to *problems*."""
    classes = tuple(
        ResctrlClass(
            name=name,
            begin_ratio=each.l3[0],
            end_ratio=each.l3[1],
            bandwidth_ratio=each.mb,
            koordinator=frozenset(each.koordinator),
            annotation=each.annotation,
        )
        for name, each in model.classes.items()
    )
    config = ResctrlConfig(
        manage=model.manage,
        mount=model.mount,
        group=model.adopt or model.group,
        adopted=model.adopt is not None,
        monitor=model.monitor,
        rmid_reserve=model.rmid_reserve,
        classes=classes,
    )
    for each in classes:
        loc: Loc = ("resctrl", "classes", each.name)
        if each.group == model.group:
            text = f"the group {each.group} is that of best-effort work: choose another name"
            problems.append(document.problem(loc, text))
    problems += find_claimed_twice(document, "resctrl", classes)
    return config
