# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Events: what they say, how few they are, and the way from a plan to them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
import threading
from typing import Any

import pytest

from controller.config.sections.eviction import KubeEvictionConfig, MarkEffect
from controller.core.decision import (
    ChannelState,
    Demand,
    Eviction,
    Indicator,
    IndicatorStatus,
    LoopReport,
    Plan,
)
from controller.core.model import (
    CgroupId,
    Channel,
    EvictionAnswer,
    EvictionResult,
    IndicatorName,
    Mode,
)
from controller.kube.client.api import Api
from controller.kube.client.worker import Worker
from controller.kube.events import Events, Regarding
from controller.kube.overload_taint import MARK
from controller.kube.pod_eviction import PodEvictions
from controller.kube.squeeze_events import SqueezeEvents
from controller.workloads.pods.pod import Pod
from tests.api_stand_in import ApiStandIn, Asked, status
from tests.kernel.agent import eventually

SECOND_NS = 1_000_000_000
WEB, HOG = CgroupId("cpu", 1), CgroupId("cpu", 2)
PODS = {
    WEB: Pod(uid="u-web", namespace="shop", name="web-0", qos_class="Burstable", priority=0),
    HOG: Pod(uid="u-hog", namespace="jobs", name="hog", qos_class="BestEffort", priority=0),
}
HOG_OBJECT = Regarding("Pod", "jobs", "hog", "u-hog")
SERVICE = "shop/web@default"


class Clock:
    """Both clocks: seconds."""

    now_s = 1_700_000_000.25

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def server() -> Iterator[ApiStandIn]:
    with ApiStandIn() as server:
        server.put("/api/v1/nodes/n1", {"metadata": {"name": "n1"}, "spec": {}})
        yield server


@pytest.fixture
def api(server: ApiStandIn, tmp_path: Path) -> Api:
    return Api(server.kubeconfig(tmp_path / "kubeconfig"))


@pytest.fixture
def worker(api: Api) -> Iterator[Worker]:
    worker = Worker(api)
    yield worker
    worker.close()
    assert worker.failure is None


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def events(api: Api, worker: Worker, clock: Clock) -> Events:
    return Events(api, worker, "n1", clock, clock)


@pytest.fixture
def sent(server: ApiStandIn, worker: Worker) -> Callable[[], list[dict[str, Any]]]:
    def sent() -> list[dict[str, Any]]:
        done: list[bool] = []
        worker.submit(lambda: done.append(True))
        eventually("the worker", 5, lambda: bool(done))
        return [body for path, body in server.objects.items() if "/events/" in path]

    return sent


Sent = Callable[[], list[dict[str, Any]]]


def test_an_event_has_what_the_api_asks_for(events: Events, sent: Sent) -> None:
    events.emit(HOG_OBJECT, "Evicted", "because", "Warning")
    (event,) = sent()
    del event["metadata"]["resourceVersion"]
    assert event == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "jobs", "name": f"hog.{1_700_000_000_250_000:x}"},
        "eventTime": "2023-11-14T22:13:20.250000+00:00",
        "reportingController": "sweetpoint.dev/agent",
        "reportingInstance": "n1",
        "action": "Evicted",
        "reason": "Evicted",
        "type": "Warning",
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "jobs",
            "name": "hog",
            "uid": "u-hog",
        },
        "note": "because",
    }


def test_the_same_again_is_a_series_and_after_a_pause_a_new_event(
    events: Events, sent: Sent, clock: Clock
) -> None:
    for _ in range(3):
        events.emit(HOG_OBJECT, "EvictionRefused", "a budget")
        clock.now_s += 60
    (event,) = sent()
    assert event["series"] == {
        "count": 3,
        "lastObservedTime": "2023-11-14T22:15:20.250000+00:00",
    }
    events.emit(HOG_OBJECT, "Evicted", "other reason")
    clock.now_s += 400
    events.emit(HOG_OBJECT, "EvictionRefused", "again")
    assert [event.get("series") is None for event in sent()] == [False, True, True]


def test_an_event_that_expired_at_the_server_is_made_again(
    events: Events, sent: Sent, server: ApiStandIn
) -> None:
    events.emit(HOG_OBJECT, "Evicted", "a")
    assert len(sent()) == 1
    server.objects = {}
    events.emit(HOG_OBJECT, "Evicted", "a")
    assert [event["series"]["count"] for event in sent()] == [2]


def test_there_are_never_many(events: Events, sent: Sent, clock: Clock) -> None:
    for number in range(1000):
        events.emit(HOG_OBJECT._replace(name=f"pod-{number}"), "Evicted", "x", "Warning")
        clock.now_s += 0.1
    assert len(sent()) == 20 + 16
    assert events.dropped == 1000 - 36


def test_what_was_done_to_a_pod_is_told_however_much_is_told_of_squeezes(
    events: Events, sent: Sent
) -> None:
    for number in range(100):
        service = HOG_OBJECT._replace(name=f"web-{number}")
        events.emit(service, "BestEffortSqueezed", "x")
    for number in range(8):
        events.emit(HOG_OBJECT._replace(name=f"hog-{number}"), "Evicted", "x", "Warning")
    assert [event["reason"] for event in sent()].count("Evicted") == 8
    assert len(sent()) == 20


def test_an_event_whose_creation_was_not_answered_is_not_made_twice(
    events: Events, sent: Sent, server: ApiStandIn
) -> None:
    def lost(asked: Asked) -> tuple[int, dict[str, Any]] | None:
        if asked.method == "POST":
            server._act(asked)
            return 0, {}
        return None

    server.before = lost
    events.emit(HOG_OBJECT, "Evicted", "a")
    assert len(sent()) == 1
    events.emit(HOG_OBJECT, "Evicted", "a")
    assert [event["series"]["count"] for event in sent()] == [2]
    assert len(server.asked_for("POST")) == 1


def test_long_notes_and_names_are_cut(events: Events, sent: Sent) -> None:
    events.emit(HOG_OBJECT._replace(name="p" * 253), "Evicted", "ä" * 2000)
    (event,) = sent()
    note = event["note"].encode()
    assert 1000 < len(note) <= 1024 and note.endswith(b"...")
    assert len(event["metadata"]["name"]) <= 253
    events.emit(HOG_OBJECT._replace(name="q" * 228 + ".-" + "q" * 9), "Evicted", "")
    names = [event["metadata"]["name"] for event in sent()]
    assert names[1].startswith("q" * 228 + "."), "no label of a name may end in a dash"
    assert not names[1].startswith("q" * 228 + ".-")


def test_a_server_that_refuses_events_harms_nobody(
    events: Events, sent: Sent, server: ApiStandIn, worker: Worker
) -> None:
    server.before = lambda asked: status(403, "no") if asked.method == "POST" else None
    events.emit(HOG_OBJECT, "Evicted", "a")
    assert sent() == []
    assert worker.errors and worker.failure is None
    server.before = lambda _: None
    events.emit(HOG_OBJECT, "Evicted", "a")
    assert len(sent()) == 1


# From plans.


def plan(second: float, applied: float = 0.0, eviction: Eviction | None = None) -> Plan:
    state = ChannelState.SQUEEZE if applied else ChannelState.FREE
    service = SERVICE if applied else None
    loop = LoopReport(
        service=SERVICE,
        indicator=IndicatorName.RUNQ_P99,
        channel=Channel.CPU,
        status=IndicatorStatus.FRESH,
        value=12e6,
        sweet_point=3e6,
        deviation=2.0,
        filtered_deviation=1.5,
        demand=applied,
        selected=True,
        is_time=True,
    )
    indicator = Indicator(
        service=SERVICE,
        name=IndicatorName.RUNQ_P99,
        value=12e6,
        samples=9,
        status=IndicatorStatus.FRESH,
        worst=WEB,
    )
    return Plan(
        time_ns=round(second * SECOND_NS),
        demands=(
            Demand(
                channel=Channel.CPU, wanted=applied, applied=applied, state=state, service=service
            ),
        ),
        loops=(loop,),
        indicators=(indicator,),
        eviction=eviction,
    )


EVICTION = Eviction(
    cgroup=HOG,
    name="jobs/hog",
    channel=Channel.CPU,
    service=SERVICE,
    blame=0.83,
    reason=f"{SERVICE} suffers on cpu",
)


def test_a_squeeze_is_told_at_its_beginning_and_its_end(events: Events, sent: Sent) -> None:
    squeezes = SqueezeEvents(events, "n1", PODS.get)
    for second in range(5):
        squeezes.update(plan(second, 0.01), Mode.ENFORCE)  # nobody would notice
    for second in range(5, 60):
        squeezes.update(plan(second, second / 100), Mode.ENFORCE)
    for second in range(60, 88, 2):
        squeezes.update(plan(second, 0.5 if second == 70 else 0.0), Mode.ENFORCE)  # a short rest
    (begun,) = sent()
    assert (begun["reason"], begun["regarding"]["name"]) == ("BestEffortSqueezed", "web-0")
    assert begun["note"] == (
        f"cpu: best-effort work is squeezed because {SERVICE} runq_p99 12ms, its sweet point is "
        "3ms (4.0 times); demand 5%"
    )
    for second in range(88, 120):
        squeezes.update(plan(second), Mode.ENFORCE)
    _, over = sent()
    assert over["reason"] == "BestEffortReleased"
    assert over["note"] == (
        f"cpu: best-effort work is squeezed no more for {SERVICE}, after 65s (demand up to 59%, "
        "deviation up to 1.50)"
    )


def test_two_services_that_suffer_in_turn_are_told_of_once_each(events: Events, sent: Sent) -> None:
    squeezes = SqueezeEvents(events, "n1", lambda _: None)
    for second in range(100):
        service = ("shop/a@default", "shop/b@default")[second % 2]
        found = plan(second, 0.5)
        demands = tuple(replace(demand, service=service) for demand in found.demands)
        squeezes.update(replace(found, demands=demands), Mode.ENFORCE)
    assert [event["reason"] for event in sent()] == ["BestEffortSqueezed"]
    assert sent()[0]["series"]["count"] == 2
    for second in range(100, 140):
        squeezes.update(replace(plan(second), demands=()), Mode.ENFORCE)
    notes = [event["note"] for event in sent() if event["reason"] == "BestEffortReleased"]
    assert len(notes) == 1 and "for shop/a@default, after 98s" in notes[0]


def test_a_squeeze_of_a_service_without_pod_is_told_at_the_node(events: Events, sent: Sent) -> None:
    squeezes = SqueezeEvents(events, "n1", lambda _: None)
    squeezes.update(plan(1, 1.0), Mode.OBSERVE)
    (event,) = sent()
    assert event["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1"}
    assert event["metadata"]["namespace"] == "default"
    assert "would be squeezed (the agent only observes)" in event["note"]


def evictions(api: Api, worker: Worker, events: Events, *, enabled: bool = True) -> PodEvictions:
    config = KubeEvictionConfig(enabled, MarkEffect.NO_SCHEDULE, 600 * SECOND_NS)
    return PodEvictions(api, worker, events, config, "n1", PODS.get)


def first(found: PodEvictions) -> EvictionAnswer:
    answers: list[EvictionAnswer] = []
    eventually("an answer", 5, lambda: bool(answers.extend(found.answers()) or answers))
    (answer,) = answers
    return answer


def test_an_eviction_is_answered_later_and_explained_in_full(
    api: Api, worker: Worker, events: Events, server: ApiStandIn, sent: Sent
) -> None:
    found = evictions(api, worker, events)
    assert found.request(EVICTION, plan(1, 1.0, EVICTION), enforcing=True)
    assert first(found).result is EvictionResult.EVICTED
    (event,) = sent()
    assert (event["reason"], event["type"]) == ("Evicted", "Warning")
    assert event["note"] == (
        f"evicted: {SERVICE} suffers on cpu: it made latency-sensitive work wait for 0.83cpu; "
        f"{SERVICE} runq_p99 12ms, its sweet point is 3ms (4.0 times) [the API server took it]"
    )
    taints = server.objects["/api/v1/nodes/n1"]["spec"]["taints"]
    assert taints == [{"key": MARK, "effect": "NoSchedule"}]
    found.remove_taint()
    sent()
    assert server.objects["/api/v1/nodes/n1"]["spec"]["taints"] == []
    assert found.marked_until_s is None


def test_a_budget_and_an_absent_server_are_told_as_what_they_are(
    api: Api, worker: Worker, events: Events, server: ApiStandIn, sent: Sent
) -> None:
    found = evictions(api, worker, events)
    refusal = status(429, "Cannot evict pod", "DisruptionBudget")

    def before(asked: Asked) -> tuple[int, dict[str, Any]] | None:
        return refusal if asked.path.endswith("/eviction") else None

    server.before = before
    found.request(EVICTION, plan(1, 1.0, EVICTION), enforcing=True)
    assert first(found).result is EvictionResult.REFUSED
    refusal = (0, {})
    found.request(EVICTION, plan(2, 1.0, EVICTION), enforcing=True)
    assert first(found).result is EvictionResult.UNANSWERED
    server.before = lambda asked: (0, {}) if asked.path.endswith("/n1") else None
    found.request(EVICTION, plan(3, 1.0, EVICTION), enforcing=True)
    assert first(found).result is EvictionResult.HELD
    reasons = [event["reason"] for event in sent()]
    assert reasons == ["EvictionRefused", "EvictionUnanswered", "EvictionHeld"]


def test_what_waited_behind_a_slow_server_is_not_done_when_the_agent_ends(
    api: Api, worker: Worker, events: Events, server: ApiStandIn
) -> None:
    found = evictions(api, worker, events)
    go = threading.Event()
    worker.submit(lambda: bool(go.wait(10)))
    found.request(EVICTION, plan(1, 1.0, EVICTION), enforcing=True)
    found.remove_taint()
    go.set()
    assert first(found).result is EvictionResult.HELD
    assert not server.asked_for("POST")


@pytest.mark.parametrize(("enforcing", "enabled"), [(False, True), (True, False)])
def test_what_would_be_evicted_is_only_told(
    api: Api,
    worker: Worker,
    events: Events,
    server: ApiStandIn,
    sent: Sent,
    enforcing: bool,
    enabled: bool,
) -> None:
    found = evictions(api, worker, events, enabled=enabled)
    found.request(EVICTION, plan(1, 1.0, EVICTION), enforcing=enforcing)
    assert first(found).result is EvictionResult.REPORTED
    (event,) = sent()
    assert event["reason"] == "WouldEvict"
    assert not any(asked.path.endswith("/eviction") for asked in server.asked)
    assert not server.asked_for("PATCH")


def test_who_is_no_pod_is_left_to_others(api: Api, worker: Worker, events: Events) -> None:
    found = evictions(api, worker, events)
    other = replace(EVICTION, cgroup=CgroupId("cpu", 99))
    assert not found.request(other, plan(1, 1.0, other), enforcing=True)
