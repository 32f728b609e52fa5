# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``kubernetes.eviction:``, whether pods may be evicted, and the mark on the node."""

from enum import StrEnum
from typing import Annotated, NamedTuple

from controller.configfields import Text, duration, written
from controller.configsections.eviction import LimitsModel

__all__ = ("KubeEvictionConfig", "KubeEvictionModel", "MarkEffect", "build_kube_eviction")


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
