# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which permissions the agent asks for, and what it makes of the answers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from controller.config.sections.eviction import KubeEvictionConfig
from controller.config.sections.kubernetes import KubernetesConfig
from controller.config.sections.kubernetes_capacity import KubeCapacityConfig
from controller.kube.client.api import Api
from controller.kube.client.worker import Worker
from controller.kube.permissions import Permissions, needs
from tests.support.kube.api_stand_in import ApiStandIn, Asked, status
from tests.support.waiting import eventually
from tests.unit.kube.objects import NODE, Clock

CONFIG = KubernetesConfig(
    node="n1",
    kubeconfig=None,
    system_namespaces=(),
    trusted_namespaces=(),
    cgroup_roots=None,
    eviction=KubeEvictionConfig(enabled=True),
    capacity=KubeCapacityConfig(enabled=True),
)
ALL = {
    "create events": ("create", "events.k8s.io", "events", None),
    "create pods/eviction": ("create", None, "pods", "eviction"),
    "patch nodes": ("patch", None, "nodes", None),
    "patch nodes/status": ("patch", None, "nodes", "status"),
}


def test_only_what_the_configuration_uses_is_needed() -> None:
    assert [str(each) for each in needs(CONFIG)] == [*ALL]
    least = replace(CONFIG, eviction=KubeEvictionConfig(), capacity=KubeCapacityConfig())
    assert [str(each) for each in needs(least)] == ["create events"]
    assert not list(needs(replace(least, events=False)))


class Reviewer:
    """The server's answers to reviews: ``refused`` are not allowed, ``error`` replaces them."""

    def __init__(self, server: ApiStandIn) -> None:
        self.refused: set[str] = set()
        self.error: tuple[int, dict[str, Any]] | None = None
        self.asked: list[tuple[str | None, ...]] = []
        server.before = self._answer

    def _answer(self, asked: Asked) -> tuple[int, dict[str, Any]] | None:
        if not asked.path.endswith("/selfsubjectaccessreviews"):
            return None
        assert asked.body is not None
        wanted = asked.body["spec"]["resourceAttributes"]
        keys = ("verb", "group", "resource", "subresource")
        self.asked.append(tuple(wanted.get(key) for key in keys))
        below = f"/{wanted['subresource']}" if "subresource" in wanted else ""
        refused = f"{wanted['verb']} {wanted['resource']}{below}" in self.refused
        return self.error or (201, {**asked.body, "status": {"allowed": not refused}})


@pytest.fixture
def reviewer(server: ApiStandIn) -> Reviewer:
    return Reviewer(server)


@pytest.fixture
def done(worker: Worker) -> Callable[[], None]:
    def wait() -> None:
        ran: list[bool] = []
        worker.submit(lambda: ran.append(True))
        eventually("the worker", lambda: bool(ran))

    return wait


def test_what_is_not_granted_is_missing(
    api: Api, worker: Worker, reviewer: Reviewer, done: Callable[[], None]
) -> None:
    reviewer.refused = {"create pods/eviction", "patch nodes/status"}
    permissions = Permissions(api, worker, needs(CONFIG))
    done()
    assert sorted(permissions.missing) == ["create pods/eviction", "patch nodes/status"]
    assert reviewer.asked == [*ALL.values()]
    assert not worker.errors


def test_it_asks_again_soon_only_while_something_is_missing(
    api: Api, worker: Worker, reviewer: Reviewer, done: Callable[[], None], clock: Clock
) -> None:
    reviewer.refused = {"create events"}
    permissions = Permissions(api, worker, needs(CONFIG), clock)
    done()
    reviewer.refused = set()
    worker.submit(permissions.ask)
    done()
    assert len(reviewer.asked) == 2 * len(ALL)
    assert not permissions.missing
    for after_s, times in ((599, 2), (1, 3)):
        clock.now_s += after_s
        worker.submit(permissions.ask)
        done()
        assert len(reviewer.asked) == times * len(ALL)


@pytest.mark.parametrize("error", [status(403, "no reviews"), status(404, "no such kind")])
def test_a_server_that_cannot_be_asked_refuses_nothing(
    api: Api,
    worker: Worker,
    reviewer: Reviewer,
    done: Callable[[], None],
    error: tuple[int, dict[str, Any]],
) -> None:
    reviewer.error = error
    permissions = Permissions(api, worker, needs(CONFIG))
    done()
    assert len(reviewer.asked) == len(ALL)
    assert not permissions.missing
    assert not worker.denied


def test_an_answer_that_says_nothing_is_no_refusal(
    api: Api, worker: Worker, reviewer: Reviewer, done: Callable[[], None]
) -> None:
    reviewer.error = (201, {"status": "?"})
    permissions = Permissions(api, worker, needs(CONFIG))
    done()
    assert not permissions.missing


def test_a_job_that_is_forbidden_is_denied_until_it_succeeds(
    server: ApiStandIn, worker: Worker, api: Api, done: Callable[[], None]
) -> None:
    def look() -> None:
        api.get(NODE)

    server.before = lambda _: status(403, "may not get nodes")
    worker.submit(look, "a look at the node")
    done()
    assert [*worker.denied] == ["a look at the node"]
    assert "may not get nodes" in worker.denied["a look at the node"]
    server.before = lambda _: None
    worker.submit(look, "a look at the node")
    done()
    assert not worker.denied
