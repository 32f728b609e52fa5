# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated node on which every best-effort workload makes every service wait differently."""

from collections.abc import Sequence
from dataclasses import replace

from controller.core.model import CgroupId
from controller.core.settings import HostFacts, Settings
from controller.demo.simulated_node import Plant, SimulatedNode
from tests.support.loops.closed_loop import make_spec

__all__ = ("HarmNode", "settings_for")


class HarmNode(SimulatedNode):
    """Service *i* waits ``harm[i][j]`` ns (p99) for each CPU that best-effort workload *j* uses.

    The profile of service *i* is ``service-i``. ``waits_ns`` is the true p99 of each service, and
    ``work`` the CPU time of each best-effort workload, in CPU seconds.
    """

    def __init__(
        self,
        seed: int,
        harm: Sequence[Sequence[float]],
        wants: Sequence[float],
        plant: Plant | None = None,
    ) -> None:
        super().__init__(seed, plant or Plant(cpus=8, noise=0.1), wants, services=len(harm))
        self.harm = [list(row) for row in harm]
        self.sensitive = [
            each._replace(profile=f"service-{index}") for index, each in enumerate(self.sensitive)
        ]
        self.waits_ns = [0.0] * len(harm)

    @property
    def work(self) -> list[float]:
        """The CPU time of each best-effort workload, in CPU seconds."""
        return [self._oncpu.get(each.cgroup, 0.0) / 1e9 for each in self.best_effort]

    def _wait(self, cgroup: CgroupId, p99_ns: float, uses: list[float], dt_ns: int) -> None:
        index = next(i for i, each in enumerate(self.sensitive) if each.cgroup == cgroup)
        caused = [harm * use for harm, use in zip(self.harm[index], uses, strict=True)]
        noise = p99_ns / self.p99_ns  # of the plant, whose own p99 does not count here
        shared, self.p99_ns = self.p99_ns, self.plant.quiet_p99_ns + sum(caused)
        self.waits_ns[index] = self.p99_ns
        super()._wait(cgroup, self.p99_ns * noise, caused, dt_ns)
        self.p99_ns = shared


def settings_for(node: HarmNode, sweet_points_ns: Sequence[float], settings: Settings) -> Settings:
    """Return *settings* with a profile for each service of *node*, with its sweet point."""
    profile = settings.profiles["default"]
    profiles = {
        each.profile: replace(profile, name=each.profile, indicators=(make_spec(sweet_point_ns),))
        for each, sweet_point_ns in zip(node.sensitive, sweet_points_ns, strict=True)
    }
    return replace(settings, profiles=profiles, host=HostFacts(cpus=node.plant.cpus))
