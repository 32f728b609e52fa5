# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The sections ``eviction:`` and ``kubernetes.eviction:``.

``eviction`` selects the action for workloads of the configuration file on a host without
Kubernetes. ``kubernetes.eviction`` enables evictions of pods and selects the taint of the node.
Both limit the rate of evictions. Whether and when an eviction is wanted is set in profiles.
"""

from enum import StrEnum
from typing import Annotated, NamedTuple

from pydantic import Field

from controller.config.fields import Strict, Text, duration, raw_default
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
    """The action for a workload that is evicted on a host without Kubernetes."""

    OFF = "off"
    FREEZE = "freeze"
    KILL = "kill"


class EvictionConfig(NamedTuple):
    """The checked section ``eviction``. A frozen workload is thawed after ``freeze_ns``."""

    standalone: StandaloneAction = StandaloneAction.OFF
    freeze_ns: int = 600_000_000_000


class LimitsModel(Strict):
    """Limits on the rate of evictions."""

    per_hour: Annotated[int, Field(ge=1, le=60)] = 3
    """Most evictions on this host in an hour, across restarts of the agent."""
    cool_down: Annotated[int, duration("10s", "24h")] = raw_default("60s")
    """Shortest time between two evictions; it doubles while evictions do not help."""


class EvictionModel(LimitsModel):
    """Evictions of workloads of this file; profiles enable them."""

    standalone: Annotated[StandaloneAction, Text] = StandaloneAction.OFF
    """What an eviction does without Kubernetes: off nothing, freeze stops the workload for a
    while, kill ends it."""
    freeze_for: Annotated[int, duration("10s", "24h")] = raw_default("10m")
    """Time after which a frozen workload runs again."""


def build_eviction(model: EvictionModel) -> EvictionConfig:
    """Return the checked section ``eviction``."""
    return EvictionConfig(standalone=model.standalone, freeze_ns=model.freeze_for)


def build_limits(model: LimitsModel) -> EvictionLimits:
    """Return the limits of either section."""
    return EvictionLimits(per_hour=model.per_hour, cool_down_ns=model.cool_down)


class MarkEffect(StrEnum):
    """The effect of the taint that keeps evicted pods off the node for a while."""

    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_SCHEDULE = "NoSchedule"
    NONE = "none"


class KubeEvictionConfig(NamedTuple):
    """The checked section ``kubernetes.eviction``; not ``enabled``: evictions are only reported."""

    enabled: bool = False
    mark: MarkEffect = MarkEffect.PREFER_NO_SCHEDULE
    mark_ns: int = 600_000_000_000


class KubeEvictionModel(LimitsModel):
    """Evictions of pods of this node; profiles enable them and set the delay."""

    enabled: bool = False
    """Whether pods of this node may be evicted; without it evictions are only reported."""
    mark: Annotated[MarkEffect, Text] = MarkEffect.PREFER_NO_SCHEDULE
    """Effect of the taint sweetpoint.dev/overloaded that keeps replacements off the node, or
    none for no taint."""
    mark_for: Annotated[int, duration("1m", "24h")] = raw_default("10m")
    """Duration of the taint; each eviction extends it."""


def build_kube_eviction(model: KubeEvictionModel) -> KubeEvictionConfig:
    """Return the checked section ``kubernetes.eviction``."""
    return KubeEvictionConfig(enabled=model.enabled, mark=model.mark, mark_ns=model.mark_for)
