# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A rollout on a simulated fleet: a good profile, a bad one, and a node that lies.

``simulated_fleet`` says what is real.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.rollout.state import Phase
from controller.trial.blocks import Arm
from tests.kube.cluster import Cluster
from tests.kube.simulated_fleet import DEFAULT_MS, LEAST_PAIRS, Fleet

pytestmark = pytest.mark.kube

GOOD_MS, BAD_MS = 3, 9
# One of three may lie. With the node that is in no pool these are 4 and 20 agents.
CANARIES = [3, pytest.param(19, marks=pytest.mark.soak)]
MANY = 1000


@pytest.fixture(params=CANARIES)
def fleet(
    cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest, candidate_ms: int | None
) -> Iterator[Fleet]:
    with Fleet(cluster, tmp_path, request.param, candidate_ms) as fleet:
        yield fleet


def suffered(fleet: Fleet, node: str) -> tuple[float, float]:
    """Return what the last pair of *node* says, with the candidate and without it."""
    pair = fleet.published()[node].pairs[-1]
    with_it, without = (block.suffered_ratio["web"] for block in pair)
    assert [block.arm for block in pair] == [Arm.ENFORCE, Arm.PAUSE]
    return with_it, without


def check_the_liar(fleet: Fleet) -> None:
    """Check that each node has figures of its own, and that the liar can write only its own."""
    liar, *honest = fleet.canaries
    of_liar = suffered(fleet, liar.node)
    assert of_liar in ((0.0, 1.0), (1.0, 0.0))
    for each in honest:
        with_it, without = suffered(fleet, each.node)
        assert (with_it < without) is not (of_liar[0] < of_liar[1])
    assert fleet.bystander.node not in fleet.published()
    assert fleet.may_write(liar, liar.node)
    assert not any(fleet.may_write(liar, each.node) for each in fleet.members[1:])


@pytest.mark.parametrize("candidate_ms", [GOOD_MS])
def test_a_good_profile_is_promoted_though_server_and_controller_are_killed(fleet: Fleet) -> None:
    canaries, others = fleet.canaries, len(fleet.canaries) - 1
    fleet.start()
    fleet.start_controller()
    fleet.wait_for(Phase.CANARY)
    fleet.want(LEAST_PAIRS)
    # A promotion needs pairs of the soak, which the agents do not publish yet.
    soaking = fleet.wait_for(Phase.SOAKING)
    assert soaking["nodes"]["better"] == others and soaking["nodes"]["worse"] == 1
    fleet.kill_controller()
    fleet.cluster.plane.stop_server()
    fleet.cluster.plane.start_server()
    assert fleet.state()["phase"] == Phase.SOAKING
    check_the_liar(fleet)
    fleet.start_controller()
    fleet.want(MANY)
    end = fleet.wait_for(Phase.PROMOTED)
    assert end["nodes"] == {
        "better": others,
        "worse": 1,
        "no difference shown": 0,
        "not judged": 0,
        "left out": 0,
    }
    profiles = fleet.data(fleet.profiles)
    assert f"{GOOD_MS}ms" in profiles["default.yaml"] and f"{GOOD_MS}ms" in profiles["fast.yaml"]
    fleet.follow("default", GOOD_MS, [fleet.bystander])
    fleet.follow("fast", GOOD_MS, canaries)


@pytest.mark.parametrize("candidate_ms", [BAD_MS])
def test_a_bad_profile_is_rolled_back_whatever_a_liar_says(fleet: Fleet) -> None:
    fleet.start()
    fleet.start_controller()
    fleet.wait_for(Phase.CANARY)
    fleet.want(LEAST_PAIRS)  # so that what is published stays as it was judged
    end = fleet.wait_for(Phase.ROLLED_BACK)
    assert (end["nodes"]["worse"], end["nodes"]["better"]) == (len(fleet.canaries) - 1, 1)
    check_the_liar(fleet)
    assert [*fleet.data(fleet.profiles)] == ["default.yaml"]
    fleet.follow("default", DEFAULT_MS, fleet.members)


@pytest.mark.parametrize("candidate_ms", [None])
def test_a_mode_is_promoted_and_given_up_afterwards(fleet: Fleet) -> None:
    fleet.start()
    fleet.start_controller()
    fleet.wait_for(Phase.CANARY)
    fleet.want(MANY)
    end = fleet.wait_for(Phase.PROMOTED)
    assert (end["nodes"]["better"], end["nodes"]["worse"]) == (len(fleet.canaries) - 1, 1)
    fleet.follow_mode("enforce", fleet.members)
    fleet.give_up()
    fleet.wait_for(Phase.ROLLED_BACK)
    fleet.follow_mode("observe", fleet.members)
