# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Evictions: accepted, refused, held, lost or only reported, with their Events and the taint."""

from dataclasses import replace
from pathlib import Path
import threading
from typing import Any

import pytest

from controller.config.sections.eviction import KubeEvictionConfig, MarkEffect
from controller.core.model import CgroupId, Channel, EvictionAnswer, EvictionResult
from controller.kube.client.api import Api
from controller.kube.client.errors import ApiUnreachable
from controller.kube.client.worker import Worker
from controller.kube.events import Events
from controller.kube.overload_taint import TAINT_KEY, OverloadTaint
from controller.kube.pod_eviction import EvictionClient, PodEvictions
from tests.support.kube.api_stand_in import ApiStandIn, Asked, status
from tests.support.waiting import DEADLINE_S, eventually
from tests.unit.kube.objects import (
    EVICTION,
    FOREIGN,
    NODE,
    OURS,
    PODS,
    VICTIM,
    Clock,
    Sent,
    evict,
    plan,
    taints_and_end,
)

EVICTION_PATH = "/api/v1/namespaces/jobs/pods/hog/eviction"
BUDGET = "Cannot evict pod as it would violate the pod's disruption budget."


def refuse_evictions(
    server: ApiStandIn, code: int, message: str, *causes: str, **more: int
) -> None:
    """Make the server refuse evictions, and no other request."""

    def before(asked: Asked) -> tuple[int, dict[str, Any]] | None:
        return status(code, message, *causes, **more) if asked.path == EVICTION_PATH else None

    server.before = before


def test_the_eviction_names_the_uid_of_the_pod_and_the_taint_is_set_first(
    server: ApiStandIn, api: Api, taint: OverloadTaint
) -> None:
    found = evict(api, taint)
    assert (found.cgroup, found.channel, found.result) == (
        CgroupId("cpu", 7),
        Channel.CPU,
        EvictionResult.EVICTED,
    )
    assert found.wait_ns == 90 * 10**9
    long_grace = EvictionClient(api, taint, lambda: 0).evict(VICTIM._replace(grace_s=2**31 - 1))
    assert long_grace.wait_ns == 3600 * 10**9, "at most an hour"
    patch, post = (each for each in server.asked[:5] if each.method in ("PATCH", "POST"))
    assert (patch.method, patch.path) == ("PATCH", NODE)
    assert patch.content_type.startswith("application/merge-patch+json")
    assert post == ("POST", EVICTION_PATH, post.body, post.content_type)
    assert post.body == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": "jobs", "name": "hog"},
        "deleteOptions": {"preconditions": {"uid": "u-1"}},
    }
    assert taints_and_end(server) == ([FOREIGN, OURS], "2023-11-14T22:23:20+00:00")


@pytest.mark.parametrize(
    ("code", "message", "causes", "result", "wait_s"),
    [
        (429, BUDGET, ("DisruptionBudget",), EvictionResult.REFUSED, 0),
        (500, "This pod has more than one PodDisruptionBudget, ...", (), EvictionResult.REFUSED, 0),
        (403, "denied by a policy", (), EvictionResult.REFUSED, 0),
        (422, "no", (), EvictionResult.REFUSED, 0),
        (404, 'pods "hog" not found', (), EvictionResult.GONE, 0),
        (409, "the UID in the precondition (u-1) does not match", (), EvictionResult.GONE, 0),
        (429, "Too many requests, please try again later.", (), EvictionResult.HELD, 7),
        (403, 'cannot create resource "pods/eviction"', (), EvictionResult.HELD, 300),
        (500, "etcdserver: leader changed", (), EvictionResult.HELD, 7),
        (503, "shutting down", (), EvictionResult.HELD, 7),
    ],
)
def test_errors_are_classified_and_leave_no_taint(
    server: ApiStandIn,
    api: Api,
    taint: OverloadTaint,
    code: int,
    message: str,
    causes: tuple[str, ...],
    result: EvictionResult,
    wait_s: int,
) -> None:
    refuse_evictions(server, code, message, *causes, retryAfterSeconds=7)
    found = evict(api, taint)
    assert (found.result, found.wait_ns) == (result, wait_s * 10**9)
    assert message[:20] in found.message
    assert len(server.asked_for("POST")) == 1, "there is no retry"
    assert taints_and_end(server) == ([FOREIGN], None)
    assert not taint.present


def test_a_refusal_keeps_the_taint_of_an_earlier_eviction(
    server: ApiStandIn, api: Api, taint: OverloadTaint
) -> None:
    assert evict(api, taint).result is EvictionResult.EVICTED
    refuse_evictions(server, 429, BUDGET, "DisruptionBudget")
    assert evict(api, taint).result is EvictionResult.REFUSED
    assert taints_and_end(server)[0] == [FOREIGN, OURS]


def test_a_lost_response_is_no_refusal_and_the_taint_stays_its_time(
    server: ApiStandIn, api: Api, taint: OverloadTaint, clock: Clock
) -> None:
    server.before = lambda asked: (0, {}) if asked.method == "POST" else None
    answer = evict(api, taint)
    assert answer.result is EvictionResult.UNANSWERED
    assert answer.wait_ns >= 30 * 10**9  # it may have been accepted, and the pod be ending
    taint.expire()
    assert taints_and_end(server)[0] == [FOREIGN, OURS]
    clock.now_s += 600
    taint.expire()
    assert taints_and_end(server) == ([FOREIGN], None)


def test_an_eviction_that_was_never_sent_is_held(tmp_path: Path, clock: Clock) -> None:
    with ApiStandIn() as absent:
        api = Api(absent.kubeconfig(tmp_path / "kubeconfig"))
    found = evict(api, OverloadTaint(api, "n1", MarkEffect.NONE, 600.0, clock, clock))
    assert found.result is EvictionResult.HELD
    assert "refused" in found.message


def test_a_taint_that_cannot_be_removed_is_removed_later(
    server: ApiStandIn, api: Api, taint: OverloadTaint
) -> None:
    def before(asked: Asked) -> tuple[int, dict[str, Any]] | None:
        if asked.method == "POST":
            return status(429, BUDGET, "DisruptionBudget")
        return (0, {}) if server.asked_for("POST") else None

    server.before = before
    found = evict(api, taint)
    assert found.result is EvictionResult.REFUSED and BUDGET in found.message
    assert taints_and_end(server)[0] == [FOREIGN, OURS], "it could not be removed"
    with pytest.raises(ApiUnreachable):
        taint.expire()
    server.before = lambda _: None
    taint.expire()
    assert taints_and_end(server) == ([FOREIGN], None)


def test_an_eviction_that_is_too_late_is_not_requested(
    server: ApiStandIn, api: Api, taint: OverloadTaint
) -> None:
    times = iter((99, 100, 100))  # too late after setting the taint, and before it
    client = EvictionClient(api, taint, lambda: next(times))
    for _ in range(2):
        found = client.evict(VICTIM)
        assert (found.result, found.wait_ns) == (EvictionResult.HELD, 0)
        assert found.message == "the API server took so long that the evidence is old"
        assert taints_and_end(server) == ([FOREIGN], None)
    assert server.asked_for("POST") == []


def test_a_closed_client_requests_no_eviction(
    server: ApiStandIn, api: Api, taint: OverloadTaint
) -> None:
    client = EvictionClient(api, taint, lambda: 0)
    client.close()
    assert client.evict(VICTIM).message == "the agent is shutting down"
    assert not server.asked_for("POST") and not server.asked_for("PATCH")


def test_no_eviction_is_requested_when_the_taint_cannot_be_set(
    server: ApiStandIn, api: Api, taint: OverloadTaint
) -> None:
    server.before = lambda asked: status(403, "no") if asked.method == "PATCH" else None
    assert evict(api, taint).result is EvictionResult.HELD
    assert server.asked_for("POST") == []


def evictions(api: Api, worker: Worker, events: Events, *, enabled: bool = True) -> PodEvictions:
    config = KubeEvictionConfig(enabled, MarkEffect.NO_SCHEDULE, 600 * 10**9)
    return PodEvictions(api, worker, events, config, "n1", PODS.get)


def first(found: PodEvictions) -> EvictionAnswer:
    """Wait for the only answer and return it."""
    (answer,) = eventually("an answer", lambda: list(found.answers()))
    return answer


def test_an_eviction_is_answered_later_and_explained(
    api: Api, worker: Worker, events: Events, server: ApiStandIn, sent: Sent
) -> None:
    found = evictions(api, worker, events)
    assert found.request(EVICTION, plan(1, 1.0, EVICTION), enforcing=True)
    assert first(found).result is EvictionResult.EVICTED
    (event,) = sent()
    assert (event["reason"], event["type"]) == ("Evicted", "Warning")
    assert event["note"] == (
        "evicted: a service of another namespace suffers on cpu, and jobs/hog contributed most: it "
        "made latency-sensitive work wait for 0.83cpu [the API server accepted it]"
    )
    taints = server.objects[NODE]["spec"]["taints"]
    assert taints == [FOREIGN, {"key": TAINT_KEY, "effect": "NoSchedule"}]
    found.remove_taint()
    sent()
    assert server.objects[NODE]["spec"]["taints"] == [FOREIGN]
    assert found.marked_until_s is None


@pytest.mark.parametrize(
    ("service", "named"),
    [
        ("jobs/web@default", True),
        ("jobs-2/web@default", False),
        ("job/web@default", False),
        ("web", False),  # of the configuration file
    ],
)
def test_an_event_names_only_services_of_its_namespace(
    api: Api, worker: Worker, events: Events, sent: Sent, service: str, named: bool
) -> None:
    found = evictions(api, worker, events, enabled=False)
    eviction = replace(EVICTION, service=service, reason=f"{service} suffers on cpu")
    found.request(eviction, plan(1), enforcing=True)
    list(found.answers())
    (event,) = sent()
    assert (f"{service} suffers on cpu: it made" in event["note"]) is named
    assert (service in event["note"]) is named
    assert "it made latency-sensitive work wait for 0.83cpu" in event["note"]


def test_an_eviction_for_memory_has_a_reason_of_its_own_and_names_no_service(
    api: Api, worker: Worker, events: Events, sent: Sent
) -> None:
    found = evictions(api, worker, events)
    reason = "the node runs out of memory"
    eviction = replace(EVICTION, service="", channel=Channel.MEMORY, blame=3 << 20, reason=reason)
    found.request(eviction, plan(1), enforcing=True)
    assert first(found).result is EvictionResult.EVICTED
    (event,) = sent()
    assert event["reason"] == "EvictedForMemory"
    assert f"{reason}: it has 3MiB of memory" in event["note"]


def test_a_budget_and_an_absent_server_have_different_reasons(
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


def test_a_waiting_eviction_is_not_requested_when_the_agent_ends(
    api: Api, worker: Worker, events: Events, server: ApiStandIn
) -> None:
    found = evictions(api, worker, events)
    go = threading.Event()

    def wait() -> None:
        go.wait(DEADLINE_S)

    worker.submit(wait)
    found.request(EVICTION, plan(1, 1.0, EVICTION), enforcing=True)
    found.remove_taint()
    go.set()
    assert first(found).result is EvictionResult.HELD
    assert not server.asked_for("POST")


def test_the_taint_is_removed_at_the_end_after_a_failed_request(
    api: Api, worker: Worker, events: Events, server: ApiStandIn
) -> None:
    found = evictions(api, worker, events)
    found.request(EVICTION, plan(1, 1.0, EVICTION), enforcing=True)
    assert first(found).result is EvictionResult.EVICTED
    failures: list[tuple[int, dict[str, Any]]] = [(500, {})]
    server.before = lambda asked: failures.pop() if failures and asked.method == "PATCH" else None
    found.remove_taint()
    worker.close()
    assert not failures
    assert not found.may_be_marked


@pytest.mark.parametrize(("enforcing", "enabled"), [(False, True), (True, False)])
def test_an_eviction_is_only_reported_when_it_is_not_enabled(
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


def test_a_workload_that_is_no_pod_is_not_evicted_here(
    api: Api, worker: Worker, events: Events
) -> None:
    found = evictions(api, worker, events)
    other = replace(EVICTION, cgroup=CgroupId("cpu", 99))
    assert not found.request(other, plan(1, 1.0, other), enforcing=True)
