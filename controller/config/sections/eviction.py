# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``eviction:``, what is done on a host without Kubernetes, and how often.

The section ``kubernetes.eviction:``, whether pods may be evicted, and the mark on the node.
"""

from enum import StrEnum
from typing import Annotated, NamedTuple

from pydantic import Field

from controller.config.fields import Strict, Text, duration, written
from controller.core.settings import EvictionLimits

__all__ = (
    "EvictionConfig",
    "EvictionModel",
    "KubeEvictionConfig",
    "KubeEvictionModel",
    "LimitsModel",
    "MarkEffect",
    "StandaloneAction",
    "build_eviction",
    "build_kube_eviction",
    "build_limits",
)


class StandaloneAction(StrEnum):
    """What an eviction is for a workload of this file: nothing, a pause, or its end."""

    OFF = "off"
    FREEZE = "freeze"
    KILL = "kill"


class EvictionConfig(NamedTuple):
    """The checked section. A frozen workload runs again after ``freeze_ns``."""

    standalone: StandaloneAction = StandaloneAction.OFF
    freeze_ns: int = 600_000_000_000


class LimitsModel(Strict):
    """How often anybody may be evicted."""

    per_hour: Annotated[int, Field(ge=1, le=60)] = 3
    cool_down: Annotated[int, duration("10s", "24h")] = written("60s")


class EvictionModel(LimitsModel):
    """What becomes of a workload of this file that has to go; profiles say whether any has."""

    standalone: Annotated[StandaloneAction, Text] = StandaloneAction.OFF
    freeze_for: Annotated[int, duration("10s", "24h")] = written("10m")


def build_eviction(model: EvictionModel) -> EvictionConfig:
    """Return the checked section."""
    return EvictionConfig(standalone=model.standalone, freeze_ns=model.freeze_for)


def build_limits(model: LimitsModel) -> EvictionLimits:
    """Return the limits that either section of evictions sets."""
    return EvictionLimits(per_hour=model.per_hour, cool_down_ns=model.cool_down)


class MarkEffect(StrEnum):
    """The effect of the taint that keeps an evicted pod from coming back at once."""

    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_SCHEDULE = "NoSchedule"
    NONE = "none"


class KubeEvictionConfig(NamedTuple):
    """The checked section. Without ``enabled`` evictions are only reported."""

    enabled: bool = False
    mark: MarkEffect = MarkEffect.PREFER_NO_SCHEDULE
    mark_ns: int = 600_000_000_000


class KubeEvictionModel(LimitsModel):
    """Evictions in this cluster; profiles say for whom and after how long."""

    enabled: bool = False
    mark: Annotated[MarkEffect, Text] = MarkEffect.PREFER_NO_SCHEDULE
    mark_for: Annotated[int, duration("1m", "24h")] = written("10m")


def build_kube_eviction(model: KubeEvictionModel) -> KubeEvictionConfig:
    """Return the checked section."""
    return KubeEvictionConfig(enabled=model.enabled, mark=model.mark, mark_ns=model.mark_for)
