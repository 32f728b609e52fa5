# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated API server with one node, and the parts of the agent that talk to it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.config.sections.eviction import MarkEffect
from controller.kube.client.api import Api
from controller.kube.client.worker import Worker
from controller.kube.events import Events
from controller.kube.overload_taint import OverloadTaint
from tests.support.kube.api_stand_in import ApiStandIn
from tests.support.waiting import DEADLINE_S, eventually
from tests.unit.kube.objects import FOREIGN, NODE, Clock, Sent


@pytest.fixture(autouse=True)
def patient_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, a thread that was closed has ended."""
    monkeypatch.setattr("controller.kube.client.api._ABORT_WITHIN_S", DEADLINE_S)


@pytest.fixture
def server() -> Iterator[ApiStandIn]:
    with ApiStandIn() as server:
        server.put(NODE, {"metadata": {"name": "n1"}, "spec": {"taints": [FOREIGN]}})
        yield server


@pytest.fixture
def api(server: ApiStandIn, tmp_path: Path) -> Api:
    return Api(server.kubeconfig(tmp_path / "kubeconfig"))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def taint(api: Api, clock: Clock) -> OverloadTaint:
    taint = OverloadTaint(api, "n1", MarkEffect.PREFER_NO_SCHEDULE, 600.0, clock, clock)
    taint.expire()
    return taint


@pytest.fixture
def worker(api: Api) -> Iterator[Worker]:
    worker = Worker(api)
    yield worker
    worker.close()
    assert worker.failure is None


@pytest.fixture
def events(api: Api, worker: Worker, clock: Clock) -> Events:
    return Events(api, worker, "n1", clock, clock)


@pytest.fixture
def sent(server: ApiStandIn, worker: Worker) -> Sent:
    """A function that waits for the worker and returns the Events at the server."""

    def sent() -> list[dict[str, Any]]:
        done: list[bool] = []
        worker.submit(lambda: done.append(True))
        eventually("the worker", lambda: bool(done))
        return [body for path, body in server.objects.items() if "/events/" in path]

    return sent
