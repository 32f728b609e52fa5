# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The overload taint: set, prolonged, expired and removed."""

from controller.config.sections.eviction import MarkEffect
from controller.kube.client.api import Api
from controller.kube.overload_taint import OverloadTaint, remove_taint
from tests.support.kube.api_stand_in import ApiStandIn
from tests.unit.kube.objects import FOREIGN, OURS, Clock, taints_and_end


def test_the_taint_expires_and_each_set_prolongs_it(
    server: ApiStandIn, taint: OverloadTaint, clock: Clock
) -> None:
    taint.set()
    clock.now_s += 500
    taint.set()
    clock.now_s += 500
    taint.expire()
    assert taints_and_end(server)[0] == [FOREIGN, OURS]
    clock.now_s += 100
    taint.expire()
    assert taints_and_end(server) == ([FOREIGN], None)
    requests = len(server.asked)
    taint.expire()
    assert len(server.asked) == requests, "there is nothing to remove"


def test_a_date_that_is_set_back_does_not_prolong_the_taint(
    server: ApiStandIn, api: Api, clock: Clock
) -> None:
    dates = iter((1_700_000_000.0, 0.0, 0.0))
    taint = OverloadTaint(api, "n1", MarkEffect.NO_SCHEDULE, 600.0, clock, lambda: next(dates))
    taint.set()
    clock.now_s += 600
    taint.expire()
    assert taints_and_end(server) == ([FOREIGN], None)


def test_the_taint_of_an_earlier_run_is_removed_at_the_start(
    server: ApiStandIn, api: Api, taint: OverloadTaint, clock: Clock
) -> None:
    taint.set()
    again = OverloadTaint(api, "n1", MarkEffect.NONE, 600.0, clock, clock)
    assert again.present
    again.expire()
    assert taints_and_end(server) == ([FOREIGN], None)
    assert not again.present


def test_without_an_effect_there_is_no_request(server: ApiStandIn, api: Api, clock: Clock) -> None:
    taint = OverloadTaint(api, "n1", MarkEffect.NONE, 600.0, clock, clock)
    taint.set()
    assert server.asked == []


def test_remove_taint_returns_whether_there_was_one(
    server: ApiStandIn, api: Api, taint: OverloadTaint
) -> None:
    taint.set()
    assert remove_taint(api, "n1")
    assert not remove_taint(api, "n1")
    assert not remove_taint(api, "gone")
