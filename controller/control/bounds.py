# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a workload asked for itself is the most that it gets, squeezed or not."""

from collections.abc import Mapping
from dataclasses import replace

from controller.decision import Action
from controller.model import CgroupId

__all__ = ("Bounds",)

Amounts = Mapping[CgroupId, float]


class Bounds:
    """Lowers grants to the workloads' own limits, and grants these to who has no grant."""

    __slots__ = ("_bounded", "_grants", "_limits")

    def __init__(self) -> None:
        self._grants: Amounts = {}
        self._limits: Amounts = {}
        self._bounded: Amounts = {}

    def apply(self, grants: Amounts, limits: Amounts) -> Amounts:
        """Return *grants* within *limits*; the same object as long as they say the same."""
        if not limits:
            self._limits, self._bounded = limits, grants
            return grants
        if limits is not self._limits or grants != self._grants:
            self._limits, self._grants = limits, grants
            lowered = {each: min(most, grants.get(each, most)) for each, most in limits.items()}
            self._bounded = {**grants, **lowered}
        return self._bounded

    def explain(self, actions: list[Action]) -> list[Action]:
        """Return *actions*, with the reason of those that set a workload's own limit."""
        return [replace(each, reason=_OWN) if self._sets_own(each) else each for each in actions]

    def _sets_own(self, action: Action) -> bool:
        cgroup = CgroupId(action.target.scope, action.target.id)
        limit = self._limits.get(cgroup)
        return limit is not None and self._bounded.get(cgroup) == limit


_OWN = "no more than the workload asked for"
