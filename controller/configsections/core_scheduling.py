# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``core_scheduling:``, when best-effort work is kept off the cores of services."""

from typing import Annotated

from pydantic import Field

from controller.configfields import RATIO, Strict, Text, duration, written
from controller.settings import CoreMode, CoreSettings

__all__ = ("CORE_GROUP", "CoreSchedulingModel", "build_core_scheduling")

# A group's name, as a Kubernetes label can have it.
CORE_GROUP = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")


class CoreSchedulingModel(Strict):
    """When best-effort work gets a core-scheduling cookie, and how that must prove itself."""

    mode: Annotated[CoreMode, Text] = CoreMode.AUTO
    overlap: Annotated[float, RATIO] = written("10%")
    verify: Annotated[int, duration("5s", "1h")] = written("30s")


def build_core_scheduling(model: CoreSchedulingModel) -> CoreSettings:
    """Return the checked section."""
    return CoreSettings(mode=model.mode, overlap_min=model.overlap, verify_ns=model.verify)
