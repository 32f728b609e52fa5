# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""When other policies are in force than in the configuration that was loaded last.

A policy begins or ends at a time of the wall clock, which may be set, because the labels of the
node change, or with a pause of it. The candidate of a trial is one more policy. Between those it
compares a few values, so it is asked at each due moment of a tick.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
import time

from controller.agent.node_labels import NodeLabels
from controller.config.candidate import Candidate
from controller.config.load import Config
from controller.config.policies import PoliciesInForce, Situation, find_in_force

__all__ = ("PolicyClock",)

# A change that was refused is tried again after this: the host may have been short of something.
_AGAIN_S = 60.0
# The policies are looked at anew after this in any case. So what is further away than the calendar
# was searched is found, too.
_LONGEST_S = 3600.0


class PolicyClock:
    """For the control thread. The agent sets what no file of the configuration has.

    ``paused`` has the names of paused policies, ``candidate`` is that of a trial.

    :param labels: those of the Node, in a cluster.
    :param wall_clock: seconds since 1970.
    """

    def __init__(
        self, labels: NodeLabels | None = None, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self.labels = labels or NodeLabels(None)
        self.paused: frozenset[str] = frozenset()
        self.candidate: Candidate | None = None
        self._tried_candidate: Candidate | None = None
        self._wall_clock = wall_clock
        self._config: Config | None = None
        self._tried = PoliciesInForce()
        self._looked: tuple[Mapping[str, str] | None, frozenset[str], float]
        self._looked = None, self.paused, 0.0
        self._again_s: float | None = None

    @property
    def found(self) -> PoliciesInForce:
        """The policies in force as of the last ``is_due``, whether they are applied or not."""
        return self._tried

    @property
    def situation(self) -> Situation:
        """The labels of the Node, the time now, and the policies that are paused."""
        return Situation(self.labels.labels, self._wall_clock(), self.paused)

    def follow(self, config: Config) -> None:
        """Compare with the policies in force of *config* from now on."""
        self._config = config
        self._tried = config.in_force
        self._tried_candidate = config.in_force.candidate
        self._again_s = None
        self._looked = None, self.paused, 0.0

    def refused(self) -> None:
        """Note that the configuration with the present policies was refused."""
        self._again_s = self._wall_clock() + _AGAIN_S

    def is_due(self) -> bool:
        """Return whether others are in force now than those that were tried last."""
        config = self._config
        if config is None:
            return False
        labels, now_s, paused = self.situation
        if config.node_labels is not None:
            labels = config.node_labels
        if self._again_s is not None and abs(self._again_s - now_s) > _AGAIN_S:
            self._again_s = now_s  # the clock was set
        if self._again_s is not None and now_s >= self._again_s:
            self._again_s = None
            return True
        if self.candidate != self._tried_candidate:
            self._tried_candidate, self._again_s = self.candidate, None
            return True
        if not config.policies:
            return False
        looked, looked_paused, looked_s = self._looked
        until_s = min(self._tried.next_change_s or now_s + 1, looked_s + _LONGEST_S)
        same = looked is labels and looked_paused == paused
        if same and looked_s <= now_s < until_s:
            return False
        self._looked = labels, paused, now_s
        before = self._tried
        found = find_in_force(config.policies, Situation(labels, now_s, paused))
        self._tried = replace(found, candidate=before.candidate, changes=before.changes)
        if found.is_same_as(before):
            return False
        self._again_s = None
        return True
