# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A Lease: one holder at a time, and another one after its time."""

import pytest

from controller.kube.client.api import Api
from controller.kube.lease import Lease
from tests.support.kube.api_stand_in import ApiStandIn, Asked, status
from tests.unit.kube.objects import Clock

PATH = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/one"


@pytest.fixture
def first(api: Api, clock: Clock) -> Lease:
    return Lease(api, "ns", "one", "first", clock)


@pytest.fixture
def second(api: Api, clock: Clock) -> Lease:
    return Lease(api, "ns", "one", "second", clock)


def holder(server: ApiStandIn) -> object:
    return server.objects[PATH]["spec"].get("holderIdentity")


def test_the_first_one_holds_it_as_long_as_it_renews(
    server: ApiStandIn, clock: Clock, first: Lease, second: Lease
) -> None:
    for _ in range(5):
        assert first.hold()
        assert not second.hold()
        clock.now_s += 40
    assert holder(server) == "first"


def test_another_one_takes_it_after_a_minute_without_renewal(
    server: ApiStandIn, clock: Clock, first: Lease, second: Lease
) -> None:
    assert first.hold()
    clock.now_s += 1000  # the second one has not looked yet, so it does not know for how long
    assert not second.hold()
    clock.now_s += 59
    assert not second.hold()
    clock.now_s += 1
    assert second.hold()
    assert holder(server) == "second"
    assert not first.hold()


def test_a_lease_that_is_given_back_is_free(
    server: ApiStandIn, first: Lease, second: Lease
) -> None:
    assert first.hold()
    second.release()
    assert holder(server) == "first"
    first.release()
    assert second.hold()


def test_who_is_slower_does_not_hold_it(server: ApiStandIn, first: Lease) -> None:
    assert first.hold()

    def other_was_faster(asked: Asked) -> tuple[int, dict[str, object]] | None:
        return status(409, "modified") if asked.method in ("PATCH", "POST") else None

    server.before = other_was_faster
    assert not first.hold()
    del server.objects[PATH]
    assert not first.hold()
