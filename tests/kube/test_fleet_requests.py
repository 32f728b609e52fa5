# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The requests of a simulated fleet, by the audit log of a real API server.

``simulated_fleet`` says what is real. The agents' clocks are, except that of trials.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
import time

import pytest

from controller.rollout.state import Phase
from tests.kube.cluster import Cluster
from tests.kube.control_plane import ControlPlane
from tests.kube.simulated_fleet import LEAST_PAIRS, Fleet
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kube, pytest.mark.soak]

CANARIES, CANDIDATE_MS = 19, 3
AGENTS = CANARIES + 1
# The longest watch, so that each agent renews each watch.
STEADY_S = 600
MOST_PER_S = 0.05
MANY = 1000


@pytest.fixture
def fleet(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Iterator[Fleet]:
    with (
        ControlPlane(tmp_path_factory.mktemp("audited"), audit=True) as plane,
        Fleet(Cluster(plane), tmp_path, CANARIES, CANDIDATE_MS) as fleet,
    ):
        yield fleet


def agents(fleet: Fleet) -> Counter[str]:
    return fleet.cluster.plane.asked(fleet.user(fleet.release.name))


def test_the_requests_of_a_fleet(fleet: Fleet) -> None:
    fleet.start()
    # The last of the start: each agent asks once what it may do.
    reviews = "create selfsubjectaccessreviews"
    eventually("the reviews", lambda: agents(fleet)[reviews] >= AGENTS)
    began_s = time.monotonic()
    start = agents(fleet)
    time.sleep(STEADY_S)
    steady, steady_s = agents(fleet) - start, time.monotonic() - began_s

    before = agents(fleet)
    fleet.start_controller()
    fleet.wait_for(Phase.CANARY)
    fleet.want(LEAST_PAIRS)
    # A promotion needs pairs of the soak, which the agents do not publish yet.
    fleet.wait_for(Phase.SOAKING)
    trial = agents(fleet) - before
    before = agents(fleet)
    fleet.want(MANY)
    fleet.wait_for(Phase.PROMOTED)
    fleet.follow("default", CANDIDATE_MS, [fleet.bystander])
    event = "create events"
    eventually("the Events", lambda: (agents(fleet) - before)[event] >= AGENTS)
    promotion = agents(fleet) - before
    controller = fleet.cluster.plane.asked(fleet.user(fleet.rollout))
    for name, found in (
        ("start", start),
        (f"steady, {steady_s:.0f} s", steady),
        (f"{LEAST_PAIRS} pairs on {CANARIES} nodes", trial),
        ("further pairs and the promotion", promotion),
        ("the controller", controller),
    ):
        print(f"\n{name}: {dict(found)}")
    print(f"{steady.total() / AGENTS / steady_s:.4f} requests a second of an agent")

    # For a taint and resources of an earlier run; a list may follow three silent watches already.
    assert start["get nodes"] == 2 * AGENTS
    assert min(start[f"list {kind}"] for kind in ("pods", "nodes", "configmaps")) >= AGENTS
    assert steady.total() <= MOST_PER_S * AGENTS * steady_s
    # In this cluster nothing changes meanwhile, so that no watch gets any event.
    lists = {f"list {kind}" for kind in ("pods", "nodes", "configmaps")}
    assert not {verb for verb in steady if not verb.startswith("watch ")} - {reviews, *lists}
    for each in lists:
        assert steady[each] < steady[each.replace("list", "watch")] / 2
    assert trial["get nodes"] == trial["patch nodes"] == LEAST_PAIRS * CANARIES
    assert promotion[event] == AGENTS
