# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``law:``: switches of the parts of the control law, to measure what each brings."""

from typing import Annotated

from pydantic import Field

from controller.config.fields import RATIO, Quantity, Strict, duration, raw_default
from controller.core.settings import LawSettings, MicroProbeLimits
from controller.core.units import parse_ratio

__all__ = ("WHOLE_LAW", "LawModel", "build_law")


class MicroProbesModel(Strict):
    """Bounds of the micro-probes of a best-effort workload: how deep, how long, how often."""

    depth: Annotated[float, Quantity(parse_ratio, RATIO.pattern, "10%", "90%")] = raw_default("70%")
    """Share of a workload's use that a micro-probe takes away."""
    length: Annotated[float, duration("200ms", "2s")] = raw_default("400ms")
    """Duration of a micro-probe; at least two ticks."""
    per_minute: Annotated[float, Field(ge=0, le=10)] = 3.0
    """Most micro-probes of a workload per minute; 0 makes none."""


class LawModel(Strict):
    """The parts of the control law."""

    throttled_share: bool = True
    """Whether a service's own throttling must reach a share of its time before it excuses
    best-effort work."""
    blame_per_victim: bool = True
    """Whether a cut or eviction falls on the workloads that the suffering service waits for."""
    cut_by_signal: bool = True
    """Whether memory traffic, not waits for a CPU, shares out the cut of the cache channel."""
    fast_release: bool = True
    """Whether a squeeze that no longer has an effect is released within seconds."""
    fast_squeeze: bool = True
    """Whether the first squeeze goes past the low-pass when harm is high."""
    fast_rise: bool = True
    """Whether a squeeze that brings nothing yet rises ever faster."""
    verify_squeeze: bool = True
    """Whether a full squeeze that brought nothing is let go on trial."""
    low_floors: bool = True
    """Whether the floors of many workloads together are at most 2 % of the machine."""
    common_quota: bool = True
    """Whether the parent cgroup of many workloads gets a quota where their own cannot be low
    enough."""
    rise_on_evidence: bool = True
    """Whether the demand rises only while a service suffers."""
    explained_part: bool = True
    """Whether a loop follows only the part of the wait that best-effort work causes."""
    host_stalls: bool = True
    """Whether waits on CPUs that the hypervisor stopped are no evidence against best-effort
    work."""
    find_harm: bool = True
    """Whether each workload's harm is estimated from what it does, with micro-probes."""
    margin_by_scatter: bool = True
    """Whether the sweet point's distance from an objective follows the scatter of the service's
    figure."""
    spare_harmless: bool = True
    """Whether harmless workloads get the CPUs that a squeezed culprit leaves."""
    rungs_by_work: bool = True
    """Whether a quota alone is tried where it may leave more work than cache and bandwidth
    limits."""
    verify_unmet: bool = True
    """Whether a full squeeze that helps but misses the sweet point is let go on trial."""
    steady_grants: bool = True
    """Whether small changes of a grant are held back for 20 s where estimates scatter."""
    micro_probes: MicroProbesModel = raw_default({})
    """Bounds of the short cuts that show which workload does harm."""


def build_law(model: LawModel) -> LawSettings:
    """Return the checked section ``law``."""
    probes = model.micro_probes
    return LawSettings(
        **model.model_dump(exclude={"micro_probes"}),
        micro_probes=MicroProbeLimits(probes.depth, int(probes.length), probes.per_minute),
    )


WHOLE_LAW = build_law(LawModel())
