# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Netlink requests that fail or take too long are a problem of their link, not of the tick."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout
from controller.host.rtnetlink import RouteSocket
from controller.reconcilers.network.pod_limits import POD_LIMITS
from tests.kernel.limited_pod import LimitedPod, limited_pod

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]


class Failing:
    """Dumps fail while ``now`` is set, as if the kernel did not answer in time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = False
        self.count = 0
        answers = RouteSocket.dump

        def dump_or_fail(socket: RouteSocket, kind: int, body: bytes) -> Iterator[bytes]:
            if self.now:
                self.count += 1
                raise TimeoutError("timed out")
            return answers(socket, kind, body)

        monkeypatch.setattr(RouteSocket, "dump", dump_or_fail)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    return Failing(monkeypatch)


@pytest.fixture
def pod(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Iterator[LimitedPod]:
    with limited_pod(cgroup_root, cgroup_layout, tmp_path) as made:
        yield made


def test_counters_that_cannot_be_read_are_a_problem_of_their_link(
    pod: LimitedPod, failing: Failing
) -> None:
    pod.ceilings(pod.limited(20))
    assert len(pod.links.samples(0)) == 6  # three tiers, two directions
    failing.now = True
    assert pod.links.samples(NS_PER_SEC) == ()
    assert pod.links.problems == {"up0": "up0: its counters cannot be read: timed out"}
    # Each attempt may take a second of a tick, so they are rare.
    count = failing.count
    assert pod.links.samples(2 * NS_PER_SEC) == ()
    assert failing.count == count
    failing.now = False
    assert len(pod.links.samples(60 * NS_PER_SEC)) == 6
    assert pod.links.problems == {}


def test_a_tree_that_cannot_be_read_is_looked_at_later(pod: LimitedPod, failing: Failing) -> None:
    pod.ceilings(pod.limited(20))
    failing.now = True
    for now_ns in range(100 * NS_PER_SEC, 120 * NS_PER_SEC, NS_PER_SEC):
        pod.links.reconcile(pod.executor, now_ns)
    assert failing.count > 0
    assert "up0" in pod.links.problems
    failing.now = False
    pod.links.reconcile(pod.executor, 130 * NS_PER_SEC)
    assert pod.links.problems == {}
    assert len(pod.links.samples(130 * NS_PER_SEC)) == 6


def test_a_pod_whose_links_cannot_be_read_is_looked_up_later(
    pod: LimitedPod, failing: Failing
) -> None:
    pod.links.set_workloads([pod.batch])
    pod.links.reconcile(pod.executor, 0)
    failing.now = True
    for now_ns in range(NS_PER_SEC, 4 * NS_PER_SEC, NS_PER_SEC):
        pod.links.reconcile(pod.executor, now_ns)
    failing.now = False
    assert pod.ceilings(pod.limited(20)) == (20, 200)
    assert POD_LIMITS not in pod.links.problems
