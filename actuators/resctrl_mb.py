# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""resctrl.mb: how much memory bandwidth the tasks of a control group may use.

The unit is the mount's (``model.MbaUnit``): percent of throttling on Intel, which is only
roughly linear in bandwidth; absolute steps on AMD; MB/s where resctrl is mounted with
``mba_MBps``. Percent is rounded up to ``bandwidth_gran``; below ``min_bandwidth`` is refused.
"""

from typing import ClassVar

from actuators.resctrl_schemata import SchemataKnob
from controller.model import Knob, KnobValue

__all__ = ("ResctrlMb",)


class ResctrlMb(SchemataKnob):
    """The actuator of ``Knob.MBA``."""

    knob = Knob.MBA
    resources: ClassVar[frozenset[str]] = frozenset({"MB"})
    base: ClassVar[int] = 10
    missing: ClassVar[str] = "no memory bandwidth allocation (MB)"

    def same(self, expected: KnobValue, found: KnobValue) -> bool:
        """Touches no file: equal, or rounded up by the granularity that was read last."""
        step = 1 if self.info is None else self.info.facts.mba_step
        want, got = self.parse(expected), self.parse(found)
        return want.keys() == got.keys() and all(0 <= got[d] - want[d] < step for d in want)
