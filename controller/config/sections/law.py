# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``law:``: switches of the parts of the control law, to measure what each brings."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from controller.config.fields import RATIO, Quantity, Strict, duration, raw_default
from controller.config.yaml_document import Document
from controller.core.settings import LawSettings, MicroProbeLimits
from controller.core.units import parse_ratio

__all__ = ("REMOVED", "WHOLE_LAW", "LawModel", "build_law", "find_removed", "parts_off")

# Parts of the law that cannot be switched off any more, and where they are now. Their keys are
# accepted for one release.
REMOVED: Mapping[str, str] = {
    "throttled_share": "always on",
    "blame_per_victim": "always on",
    "fast_squeeze": "always on",
    "low_floors": "always on",
    "common_quota": "always on",
    "rise_on_evidence": "always on",
    "explained_part": "always on",
    "host_stalls": "always on",
    "verify_unmet": "part of verify_squeeze",
    "steady_grants": "always on",
}


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

    @model_validator(mode="before")
    @classmethod
    def _leave_out_removed(cls, data: object) -> object:
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if key not in REMOVED}
        return data

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        found = super().__get_pydantic_json_schema__(schema, handler)
        for name, now in REMOVED.items():
            text = f"{name} has no effect any more ({now}); remove it."
            found["properties"][name] = {"deprecated": True, "description": text}
        return found

    cut_by_signal: bool = True
    """Whether memory traffic, not waits for a CPU, shares out the cut of the cache channel."""
    fast_release: bool = True
    """Whether a squeeze that no longer has an effect is released within seconds."""
    fast_rise: bool = True
    """Whether a squeeze that brings nothing yet rises ever faster."""
    verify_squeeze: bool = True
    """Whether a full squeeze that brings nothing or misses the sweet point is let go on trial."""
    find_harm: bool = True
    """Whether each workload's harm is estimated from what it does, with micro-probes."""
    margin_by_scatter: bool = True
    """Whether the sweet point's distance from an objective follows the scatter of the service's
    figure."""
    spare_harmless: bool = True
    """Whether harmless workloads get the CPUs that a squeezed culprit leaves."""
    rungs_by_work: bool = True
    """Whether a squeeze of the cache channel begins with the quota, and cache and bandwidth limits
    come first only where it fails."""
    micro_probes: MicroProbesModel = raw_default({})
    """Bounds of the short cuts that show which workload does harm."""


def build_law(model: LawModel) -> LawSettings:
    """Return the checked section ``law``."""
    probes = model.micro_probes
    return LawSettings(
        **model.model_dump(exclude={"micro_probes"}),
        micro_probes=MicroProbeLimits(probes.depth, int(probes.length), probes.per_minute),
    )


def find_removed(document: Document) -> tuple[str, ...]:
    """Return a warning about all keys of ``law`` in *document* that have no effect any more."""
    found = [name for name in REMOVED if ("law", name) in document.lines]
    if not found:
        return ()
    keys = ", ".join(f"{name} ({REMOVED[name]})" for name in found)
    return (document.problem(("law",), f"no effect any more, can be removed: {keys}"),)


def parts_off(law: object) -> tuple[str, ...]:
    """Return the parts in ``REMOVED`` that were off in recorded settings of the *law*.

    Settings from before a part existed lack it, which is the same.
    """
    switches = law if isinstance(law, Mapping) else {}
    return tuple(name for name in REMOVED if switches.get(name) is not True)


WHOLE_LAW = build_law(LawModel())
