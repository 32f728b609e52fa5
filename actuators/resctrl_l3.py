# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""resctrl.l3: which ways of the last-level cache the tasks of a control group may fill.

Values are masks in lower-case hex. Where code and data have masks of their own (mounted with
``cdp``) both get the same one. What the kernel refuses (too few bits, a hole where the
hardware knows none, somebody's exclusive ways) is its to say.
"""

from typing import ClassVar

from actuators.resctrl_schemata import SchemataKnob
from controller.model import Knob

__all__ = ("ResctrlL3",)


class ResctrlL3(SchemataKnob):
    """The actuator of ``Knob.LLC_WAYS``."""

    knob = Knob.LLC_WAYS
    resources: ClassVar[frozenset[str]] = frozenset({"L3", "L3CODE", "L3DATA"})
    base: ClassVar[int] = 16
    missing: ClassVar[str] = "no cache allocation (L3)"
