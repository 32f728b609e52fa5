# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Changes of the Node object: invalid responses, conflicts, and other writers."""

import contextlib
from typing import Any

import pytest

from controller.kube.client.api import Api
from controller.kube.client.errors import ApiError, ApiUnreachable
from controller.kube.extended_resources import STAMP, NodeResources, remove_resources
from controller.kube.overload_taint import TAINT_KEY, OverloadTaint
from tests.support.kube.api_stand_in import ApiStandIn, Asked, status
from tests.unit.kube.objects import FOREIGN, NODE, evict, taints_and_end


@pytest.mark.parametrize(
    "invalid",
    [
        {},
        {"metadata": []},
        {"metadata": {"resourceVersion": 7}},
        {"metadata": {"resourceVersion": "7", "annotations": []}},
        {"metadata": {"resourceVersion": "7", "annotations": {TAINT_KEY: 1, STAMP: 1}}},
        {"metadata": {"resourceVersion": "7"}, "spec": "x", "status": "x"},
        {"metadata": {"resourceVersion": "7"}, "spec": {"taints": {}}, "status": {"capacity": [1]}},
        {"metadata": {"resourceVersion": "7"}, "spec": {"taints": ["x"]}},
    ],
)
def test_a_response_that_is_no_node_raises_only_unreachable(
    server: ApiStandIn, api: Api, taint: OverloadTaint, invalid: dict[str, Any]
) -> None:
    server.before = lambda asked: (200, invalid) if asked.method == "GET" else (200, {})
    evict(api, taint)
    resources = NodeResources(api, "n1")
    for act in (
        taint.set,
        taint.remove,
        lambda: remove_resources(api, "n1"),
        lambda: resources.publish({"sweetpoint.dev/cpu": 1}, 60.0),
    ):
        with contextlib.suppress(ApiUnreachable):
            act()


def test_changes_of_other_writers_are_kept(server: ApiStandIn, taint: OverloadTaint) -> None:
    others = [{"key": f"other-{number}", "effect": "NoSchedule"} for number in range(3)]

    def change_concurrently(asked: Asked) -> None:
        if asked.method == "PATCH" and others:
            found = server.objects[NODE]
            taints = [*found["spec"]["taints"], others.pop()]
            server.put(NODE, {**found, "spec": {"taints": taints}})

    server.before = change_concurrently
    taint.set()
    assert not others
    keys = {taint["key"] for taint in taints_and_end(server)[0]}
    assert keys == {FOREIGN["key"], TAINT_KEY, "other-0", "other-1", "other-2"}
    taint.remove()
    assert {taint["key"] for taint in taints_and_end(server)[0]} == keys - {TAINT_KEY}
    assert taints_and_end(server)[0][0] == FOREIGN, "with all of its fields"


def test_a_node_that_always_changes_is_given_up(server: ApiStandIn, taint: OverloadTaint) -> None:
    server.before = lambda asked: status(409, "modified") if asked.method == "PATCH" else None
    with pytest.raises(ApiError):
        taint.set()
    assert len(server.asked_for("PATCH")) == 8
