# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``counters:``, which perf events are counted for every workload."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from controller.configfields import Strict

__all__ = ("CountersModel", "build_counters")

# What perf calls an event; whether this host has it shows when the probe is loaded.
_Source = Annotated[
    str, Field(pattern=r"^([a-z][a-z-]{1,31}|r[0-9a-f]{1,16}|[A-Za-z0-9_.-]{1,63}/[^/]{1,255}/)$")
]


class CountersModel(Strict):
    """A source for each counter: ``auto`` (the generic hardware event), ``off`` or an event."""

    cycles: _Source = "auto"
    instructions: _Source = "auto"
    llc_misses: _Source = "auto"
    llc_references: _Source = "off"
    stalled_cycles: _Source = "off"


def build_counters(model: CountersModel) -> Mapping[str, str]:
    """Return the source of each counter, by field of ``WorkloadSample``."""
    return model.model_dump()
