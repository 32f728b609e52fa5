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
    length: Annotated[float, duration("200ms", "2s")] = raw_default("400ms")
    per_minute: Annotated[float, Field(ge=0, le=10)] = 3.0


class LawModel(Strict):
    """The parts of the control law."""

    throttled_share: bool = True
    blame_per_victim: bool = True
    cut_by_signal: bool = True
    fast_release: bool = True
    fast_squeeze: bool = True
    fast_rise: bool = True
    verify_squeeze: bool = True
    low_floors: bool = True
    common_quota: bool = True
    rise_on_evidence: bool = True
    explained_part: bool = True
    host_stalls: bool = True
    find_harm: bool = True
    margin_by_scatter: bool = True
    spare_harmless: bool = True
    rungs_by_work: bool = True
    verify_unmet: bool = True
    steady_grants: bool = True
    micro_probes: MicroProbesModel = raw_default({})


def build_law(model: LawModel) -> LawSettings:
    """Return the checked section ``law``."""
    probes = model.micro_probes
    return LawSettings(
        **model.model_dump(exclude={"micro_probes"}),
        micro_probes=MicroProbeLimits(probes.depth, int(probes.length), probes.per_minute),
    )


WHOLE_LAW = build_law(LawModel())
