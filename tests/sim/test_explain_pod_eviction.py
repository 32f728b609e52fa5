# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint explain`` of evictions of a pod that a simulated API server answers."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
import threading
from typing import Any

import pytest

from controller.config.sections.eviction import KubeEvictionConfig, MarkEffect
from controller.core.decision import Plan
from controller.core.model import Mode
from controller.demo.simulated_node import SimulatedNode
from controller.kube.client.api import Api
from controller.kube.client.worker import Worker
from controller.kube.events import Events
from controller.kube.pod_eviction import PodEvictions
from controller.workloads.pods.pod import Pod
from tests.sim.explaining import Explain, incidents
from tests.support.kube.api_stand_in import ApiStandIn, status
from tests.support.loops.closed_loop import TICKS_PER_S, make_settings
from tests.support.loops.history_loop import RecordedLoop
from tests.support.waiting import DEADLINE_S

EVICTION_PATH = "/api/v1/namespaces/jobs/pods/hog/eviction"
POD = Pod(uid="u-hog", namespace="jobs", name="hog", qos_class="BestEffort", priority=0)
BUDGET = "Cannot evict pod as it would violate the pod's disruption budget."
LEAVES_AFTER_S = 3
Response = tuple[int, dict[str, Any]] | None


class PodNode(SimulatedNode):
    """A node whose only best-effort work is a pod, which hurts too much even at its floor."""

    def __init__(self) -> None:
        super().__init__(3, wants=(1.2,))
        self.plant = replace(self.plant, p99_ns=200e6)
        self.best_effort = [
            each._replace(name="jobs/hog", service="jobs/hog") for each in self.best_effort
        ]


class EvictingLoop(RecordedLoop[PodNode]):
    """Requests the evictions of the plans; an evicted pod ends some seconds later.

    The answer to a request is in the snapshot of the next tick, however long it took.
    """

    def __init__(self, data_dir: Path, evictions: PodEvictions, worker: Worker, mode: Mode) -> None:
        settings = make_settings(mode=mode)
        profile = settings.profiles["default"]
        profile = replace(profile, evict_enabled=True, evict_after_ns=20 * 10**9)
        settings = replace(settings, profiles={"default": profile})
        super().__init__(PodNode(), settings, data_dir)
        self._evictions, self._worker = evictions, worker
        self._leave_tick: int | None = None

    def step(self) -> Plan:
        plan = super().step()
        self.evictions = ()
        if plan.eviction is not None:
            enforcing = self.settings.mode is Mode.ENFORCE
            assert self._evictions.request(plan.eviction, plan, enforcing=enforcing)
            done = threading.Event()
            self._worker.submit(done.set)
            assert done.wait(DEADLINE_S)
            self.evictions = tuple(self._evictions.answers())
            if self.evictions[0].result in ("evicted", "gone", "unanswered"):
                self._leave_tick = self.tick + LEAVES_AFTER_S * TICKS_PER_S
        if self.tick == self._leave_tick:
            self.node.leave(0)
        return plan


@pytest.fixture
def server() -> Iterator[ApiStandIn]:
    with ApiStandIn() as server:
        yield server


@pytest.fixture
def loop_in(
    server: ApiStandIn, tmp_path: Path, data_dir: Path
) -> Iterator[Callable[[Mode], EvictingLoop]]:
    """Return a loop of which the server evicts the pod."""
    api = Api(server.kubeconfig(tmp_path / "kubeconfig"))
    worker = Worker(api)

    def make(mode: Mode) -> EvictingLoop:
        config = KubeEvictionConfig(True, MarkEffect.NONE, 600 * 10**9)
        pods = {PodNode().best_effort[0].cgroup: POD}
        events = Events(api, worker, "n1")
        found = PodEvictions(api, worker, events, config, "n1", pods.get, clock_ns=lambda: 0)
        return EvictingLoop(data_dir, found, worker, mode)

    yield make
    worker.close(DEADLINE_S)
    assert worker.failure is None


def answered(server: ApiStandIn, *responses: Response) -> None:
    """Let the server give *responses* to evictions, and accept those after them."""
    waiting = list(responses)
    server.before = lambda asked: (
        waiting.pop(0) if asked.path == EVICTION_PATH and waiting else None
    )


NO_POD = status(404, 'pods "hog" not found')
TOO_LATE = status(409, "the UID in the precondition (u-hog) does not match")
MANY = status(429, "Too many requests, please try again later.")
FORBIDDEN = status(403, 'cannot create resource "pods/eviction"')
ENDED = "accepted, and it ended 3s later"
HELPED = "its eviction helped: deviation 1.99 before, "


@pytest.mark.parametrize(
    ("response", "answer", "summary", "effect"),
    [
        (None, "evicted: the API server accepted it", ENDED, HELPED),
        (
            status(429, BUDGET, "DisruptionBudget"),
            f"refused: 429 R429: {BUDGET}",
            "refused, so it was not evicted",
            "",
        ),
        (NO_POD, 'gone: 404 R404: pods "hog" not found', "it had ended before", HELPED),
        (TOO_LATE, "gone: 409 R409: the UID in the", "it had ended before", HELPED),
        (MANY, "held: 429 R429: Too many requests", "not possible then, so it was not evicted", ""),
        (
            FORBIDDEN,
            "held: 403 R403: cannot create",
            "not possible then, so it was not evicted",
            "",
        ),
        ((0, {}), "unanswered: ", "asked for without an answer, and it ended 3s later", HELPED),
    ],
)
def test_what_the_api_server_answers(
    server: ApiStandIn,
    loop_in: Callable[[Mode], EvictingLoop],
    explain: Explain,
    response: Response,
    answer: str,
    summary: str,
    effect: str,
) -> None:
    answered(server, response)
    loop = loop_in(Mode.ENFORCE)
    loop.run(70)
    loop.stop()
    eviction = incidents(explain, "hog", "eviction")[0]
    assert eviction["reason"].startswith(
        "web-0 suffers on cpu (deviation 1.99) although every knob"
    )
    (given,) = eviction["answers"]
    assert given.startswith(answer)
    assert eviction["summary"] == f"eviction of jobs/hog because of web-0 on cpu: {summary}"
    assert eviction["effect"].startswith(effect) and bool(eviction["effect"]) is bool(effect)
    for name in ("jobs/hog", "web-0"):
        text = explain(name)
        assert f"eviction of jobs/hog because of web-0 on cpu: {summary}" in text
        assert f"    answer    {answer}" in text
        assert (f"    effect    {HELPED}" in text) is bool(effect)


def test_a_budget_that_refuses_once(
    server: ApiStandIn, loop_in: Callable[[Mode], EvictingLoop], explain: Explain
) -> None:
    answered(server, status(429, BUDGET, "DisruptionBudget"))
    loop = loop_in(Mode.ENFORCE)
    loop.run(450)
    loop.stop()
    refused, accepted = incidents(explain, "jobs/hog", "eviction")
    assert (refused["result"], refused["left_after_ns"], refused["effect"]) == ("refused", None, "")
    assert accepted["result"] == "evicted"
    assert accepted["left_after_ns"] == pytest.approx(LEAVES_AFTER_S * 10**9, abs=10**9)
    assert accepted["effect"].startswith("its eviction helped")
    text = explain("jobs/hog")
    assert text.index("refused, so it was not evicted") < text.index("accepted, and it ended")


def test_a_pod_that_does_not_end(
    server: ApiStandIn,
    loop_in: Callable[[Mode], EvictingLoop],
    explain: Explain,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = loop_in(Mode.ENFORCE)
    monkeypatch.setattr(loop.node, "leave", lambda index: None)
    loop.run(170)
    loop.stop()
    eviction = incidents(explain, "jobs/hog", "eviction")[0]
    assert eviction["summary"].endswith("on cpu: accepted, and it was not seen to end")
    assert eviction["effect"] == "its eviction did not help: did not leave"


def test_an_eviction_that_is_only_reported(
    server: ApiStandIn, loop_in: Callable[[Mode], EvictingLoop], explain: Explain
) -> None:
    loop = loop_in(Mode.OBSERVE)
    loop.run(60)
    loop.stop()
    (eviction,) = incidents(explain, "jobs/hog", "eviction")
    assert eviction["answers"] == ["reported: the agent only observes"]
    assert eviction["summary"].endswith("on cpu: only reported, so it was not evicted")
    assert not [asked for asked in server.asked if asked.path == EVICTION_PATH]
