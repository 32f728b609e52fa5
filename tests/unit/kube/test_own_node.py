# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the agent takes from its own Node, whatever the answer has in it."""

from collections.abc import Iterator
import queue
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from controller.kube.client.api import Api
from controller.kube.own_node import PAUSE_KEY, OwnNode
from tests.support.kube.api_stand_in import ApiStandIn, Asked
from tests.support.waiting import eventually

POOL = {"pool": "canary", "node-restriction.kubernetes.io/tier": "a", "empty": ""}


class Site:
    """A watched Node and its server, which sends what a test hands to it."""

    def __init__(self, server: ApiStandIn) -> None:
        self.server = server
        self.nodes = [self.node("n1", labels=POOL)]
        self.events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.version = 1
        server.before, server.watch = self.list, lambda _: iter(self.events.get, None)

    def node(self, name: str, **metadata: Any) -> dict[str, Any]:
        return {"metadata": {"name": name, "resourceVersion": "1", **metadata}}

    def list(self, asked: Asked) -> tuple[int, dict[str, Any]]:
        query = parse_qs(urlsplit(asked.path).query)
        assert query["fieldSelector"] == ["metadata.name=n1"]
        return 200, {"metadata": {"resourceVersion": str(self.version)}, "items": self.nodes}

    def send(self, kind: str, name: str = "n1", **metadata: Any) -> None:
        self.version += 1
        node = self.node(name, resourceVersion=str(self.version), **metadata)
        self.events.put({"type": kind, "object": node})


@pytest.fixture
def site(server: ApiStandIn) -> Site:
    return Site(server)


@pytest.fixture
def own(site: Site, api: Api) -> Iterator[OwnNode]:
    found = OwnNode(api, "n1")
    eventually("an answer", lambda: found.pause is not None)
    yield found
    site.events.put(None)
    found.close()
    assert found.failure is None


def test_labels_stay_the_same_object_until_they_change(own: OwnNode, site: Site) -> None:
    first = own.labels
    assert first == POOL
    site.send("MODIFIED", labels=POOL, annotations={PAUSE_KEY: "1h"})
    eventually("the pause", lambda: own.pause == "1h")
    assert own.labels is first
    site.send("MODIFIED", labels={}, annotations={PAUSE_KEY: "2h" * 1000})
    eventually("the labels", lambda: own.labels == {})
    eventually("the other pause", lambda: own.pause == ("2h" * 1000)[:256])
    assert [asked.method for asked in site.server.asked] == ["GET", "GET"]  # a list and a watch


def test_without_a_node_the_last_labels_stay(own: OwnNode, site: Site) -> None:
    site.send("MODIFIED", labels=POOL, annotations={PAUSE_KEY: "1h"})
    eventually("the pause", lambda: own.pause == "1h")
    site.send("DELETED")
    eventually("no node", lambda: own.missing)
    assert (own.labels, own.pause) == (POOL, "")
    site.send("ADDED", labels={"a": "b"})
    eventually("a node", lambda: not own.missing)
    assert own.labels == {"a": "b"}


def test_a_node_that_was_never_there_is_missing(site: Site, api: Api) -> None:
    site.nodes = []
    found = OwnNode(api, "n1")
    eventually("an answer", lambda: found.missing)
    assert (found.labels, found.pause) == (None, "")
    site.events.put(None)
    found.close()


@pytest.mark.parametrize(
    "other",
    [{"name": "n2"}, {"name": 7}, {"name": "n1", "annotations": {PAUSE_KEY: 7}}, {"labels": "x"}],
)
def test_the_answer_of_something_else_ends_no_pause(
    own: OwnNode, site: Site, other: dict[str, Any]
) -> None:
    site.send("MODIFIED", labels=POOL, annotations={PAUSE_KEY: "1h"})
    eventually("the pause", lambda: own.pause == "1h")
    site.nodes = [site.node(**{"name": "n1", "labels": POOL, **other})]  # also in a new list
    site.send("MODIFIED", **{"labels": POOL, **other})
    eventually("an error", lambda: own.errors.get("unreachable"))
    assert (own.labels, own.pause, own.missing) == (POOL, "1h", False)


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
def test_what_is_no_label_is_left_out(own: OwnNode, site: Site, labels: dict[str, Any]) -> None:
    site.send("MODIFIED", labels={**labels, "pool": "x"})
    eventually("the labels", lambda: own.labels == {"pool": "x"})


def test_the_number_of_labels_is_bounded(own: OwnNode, site: Site) -> None:
    site.send("MODIFIED", labels={f"l{number}": "x" for number in range(5000)})
    eventually("the labels", lambda: own.labels is not None and len(own.labels) == 1024)
