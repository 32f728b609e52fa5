# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The metrics of the controller of a rollout."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controller.rollout.state import Phase, State

__all__ = ("RolloutCollector", "Seen")


class Seen(NamedTuple):
    """What the metrics tell: whether this process holds the Lease, the state, and a problem."""

    leads: bool
    state: State | None
    problem: str


class RolloutCollector(Collector):
    """Collects from what *look* returns."""

    def __init__(self, look: Callable[[], Seen]) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """Yield each metric; those of the state only where the Lease is held."""
        leads, state, problem = self._look()
        leader = GaugeMetricFamily(
            "sweetpoint_rollout_leader", "1 where the controller of the rollout holds the Lease."
        )
        leader.add_metric([], leads)
        yield leader
        waits = GaugeMetricFamily(
            "sweetpoint_rollout_problem", "1 while a mistake in a ConfigMap stops the rollout."
        )
        waits.add_metric([], bool(problem))
        yield waits
        if not leads or state is None:
            return
        phases = GaugeMetricFamily(
            "sweetpoint_rollout_phase",
            "1 for the phase of the rollout, 0 for others.",
            labels=["phase"],
        )
        for phase in Phase:
            phases.add_metric([phase], state.phase is phase)
        yield phases
        nodes = GaugeMetricFamily(
            "sweetpoint_rollout_nodes", "Canary nodes by verdict.", labels=["verdict"]
        )
        for verdict, number in state.nodes.items():
            nodes.add_metric([verdict], number)
        yield nodes
