# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the agent takes from its own Node, whatever the answer has in it."""

from typing import Any

import pytest

from controller.kube.client.api import Api
from controller.kube.client.worker import Worker
from controller.kube.own_node import PAUSE_KEY, OwnNode
from tests.support.kube.api_stand_in import ApiStandIn
from tests.support.waiting import eventually

NODE = "/api/v1/nodes/n1?resourceVersion=0"
POOL = {"pool": "canary", "node-restriction.kubernetes.io/tier": "a", "empty": ""}


def read(own: OwnNode) -> None:
    own._read()


@pytest.fixture
def own(worker: Worker, api: Api, server: ApiStandIn) -> OwnNode:
    server.put(NODE, {"metadata": {"name": "n1", "labels": POOL}})
    found = OwnNode(api, worker, "n1")
    eventually("an answer", lambda: found.pause is not None)
    return found


def test_labels_stay_the_same_object_until_they_change(own: OwnNode, server: ApiStandIn) -> None:
    first = own.labels
    assert first == POOL
    read(own)
    assert own.labels is first
    server.put(NODE, {"metadata": {"name": "n1", "labels": {}, "annotations": {PAUSE_KEY: "1h"}}})
    read(own)
    assert own.labels == {}
    assert own.pause == "1h"


def test_without_a_node_the_last_labels_stay(own: OwnNode, server: ApiStandIn) -> None:
    server.before = lambda _: (404, {"kind": "Status", "code": 404})
    read(own)
    assert own.missing
    assert (own.labels, own.pause) == (POOL, "")


@pytest.mark.parametrize(
    "labels",
    [
        {"a\x1b[31m": "b"},
        {"a": "b\n"},
        {"a": "b" * 64},
        {"a": 1},
        {"a": None},
        {"a/b/c": "d"},
        {"\u202ea": "b"},
    ],
)
def test_what_is_no_label_is_left_out(
    own: OwnNode, server: ApiStandIn, labels: dict[str, Any]
) -> None:
    server.put(NODE, {"metadata": {"name": "n1", "labels": {**labels, "pool": "x"}}})
    read(own)
    assert own.labels == {"pool": "x"}


def test_the_number_of_labels_is_bounded(own: OwnNode, server: ApiStandIn) -> None:
    many = {f"l{number}": "x" for number in range(5000)}
    server.put(NODE, {"metadata": {"name": "n1", "labels": many}})
    read(own)
    assert own.labels is not None
    assert len(own.labels) == 1024
