# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Best-effort work is limited on the disks that the suffering service uses, and on no others."""

from collections.abc import Iterable, Sequence
import math

import pytest

from controller.core.decision import ChannelState, Plan
from controller.core.knob_values import disks_in, parse_disks
from controller.core.model import DiskRequests, Knob, Workload, WorkloadSample
from controller.core.settings import DiskFacts, HostFacts
from tests.sim.plants import DiskWaitNode
from tests.support.loops.closed_loop import ClosedLoop
from tests.support.loops.resource_loop import resource_settings, resource_spec, writes

ONE, TWO, STACKED = "8:0", "8:16", "253:0"


class TwoDisks(DiskWaitNode):
    """A service that waits on the disks ``uses``, with a job on each of two disks.

    ``counted`` are the disks to which requests are counted; ``None``: none are counted at all.
    """

    disks = (ONE, TWO)

    def __init__(
        self, seed: int, uses: Iterable[str] = (ONE,), counted: Iterable[str] | None = (ONE,)
    ) -> None:
        super().__init__(seed, (300e6, 300e6))
        self.uses, self.counted = uses, counted
        self._requests: dict[str, int] = {}

    @property
    def host(self) -> HostFacts:
        """Two disks whose capacity is not known."""
        return HostFacts(cpus=4, disks=tuple(map(DiskFacts, self.disks)), io_weight=False)

    def _use(self) -> list[float]:
        return [
            min(want, limits.get((disk, "wbps"), math.inf))
            for disk, workload, want in zip(self.disks, self.best_effort, self.wants, strict=True)
            for limits in (parse_disks(self.knobs.value(workload.cgroup.id, Knob.IO_MAX)),)
        ]

    def _run(self, used: list[float], dt_ns: int) -> None:
        mine = [use * (disk in self.uses) for disk, use in zip(self.disks, used, strict=True)]
        super()._run(mine, dt_ns)
        for workload, use, counted in zip(self.best_effort, used, mine, strict=True):
            self._count(workload, "io_bytes", (use - counted) * dt_ns / 1e9)
        for disk in self.counted or ():
            self._requests[disk] = self._requests.get(disk, 0) + 100

    def _sample(self, workload: Workload) -> WorkloadSample:
        sample = super()._sample(workload)
        if workload is not self.service or self.counted is None:
            return sample
        counts = tuple(DiskRequests(*each) for each in self._requests.items())
        return sample._replace(requests_by_disk=counts)


def loop_of(node: TwoDisks) -> ClosedLoop[TwoDisks]:
    return ClosedLoop(node, resource_settings(node, [resource_spec(DiskWaitNode)]))


def limited(plans: Sequence[Plan]) -> set[str]:
    """Return the disks that any write of *plans* limits."""
    return {
        disk for each in writes(plans, Knob.IO_MAX) for disk in disks_in(parse_disks(each.value))
    }


def in_force(node: TwoDisks) -> list[list[str]]:
    """Return the disks on which each job is limited."""
    values = (node.knobs.value(each.cgroup.id, Knob.IO_MAX) for each in node.best_effort)
    return [disks_in(parse_disks(value)) for value in values]


@pytest.mark.parametrize(("uses", "other"), [(ONE, TWO), (TWO, ONE)])
def test_a_job_on_another_disk_goes_on(uses: str, other: str) -> None:
    node = TwoDisks(1, [uses], [uses, STACKED])
    plans = loop_of(node).run(90)
    assert limited(plans) == {uses}
    assert plans[-1].demands[-1].state is ChannelState.SQUEEZE
    used = dict(zip(node.disks, node._use(), strict=True))
    assert used[other] == 300e6
    assert used[uses] < 200e6
    assert node.value < 2e6, "the service is protected"
    assert plans[-1].rungs[-1].setting.startswith(f"disks {uses} ")


def test_a_disk_stays_until_the_squeeze_is_let_go() -> None:
    node = TwoDisks(2)
    loop = loop_of(node)
    loop.run(60)
    assert in_force(node) == [[ONE], [ONE]]
    seen = []
    for uses in ([TWO], [ONE]) * 3:
        node.uses = node.counted = uses
        for _ in range(20):
            loop.run(1)
            seen.append(in_force(node))
    first = seen.index([[ONE, TWO]] * 2)
    assert seen[:first] == [[[ONE]] * 2] * first
    assert seen[first:] == [[[ONE, TWO]] * 2] * (len(seen) - first)

    wants, node.wants = node.wants, [0.0, 0.0]
    node.uses = node.counted = [TWO]
    loop.run(300)
    assert in_force(node) == [[], []]
    node.wants = wants
    assert limited(loop.run(90)) == {TWO}


@pytest.mark.parametrize("counted", [None, ()])
def test_all_disks_are_limited_where_the_use_is_not_known(counted: tuple[()] | None) -> None:
    assert limited(loop_of(TwoDisks(3, [ONE], counted)).run(60)) == {ONE, TWO}


def test_nothing_is_limited_for_a_service_on_a_disk_without_a_limit() -> None:
    node = TwoDisks(4, [ONE], [STACKED])
    plans = loop_of(node).run(60)
    assert plans[-1].demands[-1].service == "web"
    assert not writes(plans, Knob.IO_MAX)
