# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``law:``: switches of the parts of the control law, to measure what each brings."""

from controller.config.fields import Strict
from controller.core.settings import LawSettings

__all__ = ("WHOLE_LAW", "LawModel", "build_law")


class LawModel(Strict):
    """The parts of the control law."""

    throttled_share: bool = True
    blame_per_victim: bool = True
    cut_by_signal: bool = True
    fast_release: bool = True
    fast_squeeze: bool = True
    verify_squeeze: bool = True
    low_floors: bool = True
    rise_on_evidence: bool = True


def build_law(model: LawModel) -> LawSettings:
    """Return the checked section ``law``."""
    return LawSettings(**model.model_dump())


WHOLE_LAW = build_law(LawModel())
