# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Events: their fields, series, and rate."""

from collections.abc import Iterator
from typing import Any

import pytest

from controller.kube.client.api import Api
from controller.kube.client.worker import Worker
from controller.kube.events import Events
from controller.kube.reasons import Reason
from tests.support.kube.api_stand_in import ApiStandIn, Asked, status
from tests.unit.kube.objects import HOG_OBJECT, Clock, Sent


def test_an_event_has_the_fields_that_the_api_requires(events: Events, sent: Sent) -> None:
    events.emit(HOG_OBJECT, Reason.EVICTED, "because", "Warning")
    (event,) = sent()
    del event["metadata"]["resourceVersion"]
    assert event == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "jobs", "name": f"hog.{1_700_000_000_000_000:x}"},
        "eventTime": "2023-11-14T22:13:20.000000+00:00",
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


def test_a_repetition_is_a_series_and_after_a_pause_a_new_event(
    events: Events, sent: Sent, clock: Clock
) -> None:
    for _ in range(3):
        events.emit(HOG_OBJECT, Reason.REFUSED, "a budget")
        clock.now_s += 60
    (event,) = sent()
    assert event["series"] == {
        "count": 3,
        "lastObservedTime": "2023-11-14T22:15:20.000000+00:00",
    }
    events.emit(HOG_OBJECT, Reason.EVICTED, "other reason")
    clock.now_s += 400
    events.emit(HOG_OBJECT, Reason.REFUSED, "again")
    assert [event.get("series") is None for event in sent()] == [False, True, True]


def test_another_topic_is_no_repetition(events: Events, sent: Sent) -> None:
    for topic in ("pods", "permissions", "pods"):
        events.emit(HOG_OBJECT, Reason.SOURCE, f"{topic} are not well", "Warning", topic)
    first, second = sent()
    assert (first["note"], first["series"]["count"]) == ("pods are not well", 2)
    assert (second["note"], second.get("series")) == ("permissions are not well", None)


def test_an_event_that_expired_at_the_server_is_created_again(
    events: Events, sent: Sent, server: ApiStandIn
) -> None:
    events.emit(HOG_OBJECT, Reason.EVICTED, "a")
    assert len(sent()) == 1
    server.objects = {}
    events.emit(HOG_OBJECT, Reason.EVICTED, "a")
    assert [event["series"]["count"] for event in sent()] == [2]


@pytest.mark.parametrize("second", [None, status(409, "exists"), (0, {})])
def test_an_event_without_an_answer_is_sent_once_more(
    second: tuple[int, Any] | None, events: Events, sent: Sent, server: ApiStandIn
) -> None:
    answers: Iterator[tuple[int, Any] | None] = iter([(0, {}), second])
    server.before = lambda asked: next(answers) if asked.method == "POST" else None
    events.emit(HOG_OBJECT, Reason.EVICTED, "because", "Warning")
    sent()
    assert len(sent()) == (second is None)
    assert len(server.asked_for("POST")) == 2
    # After an answer the Event is known to the server, and repetitions belong to it.
    server.before = lambda _: None
    events.emit(HOG_OBJECT, Reason.EVICTED, "because", "Warning")
    sent()
    assert len(server.asked_for("PATCH")) == 1


def test_the_rate_of_events_is_bounded(events: Events, sent: Sent, clock: Clock) -> None:
    for number in range(1000):
        events.emit(HOG_OBJECT._replace(name=f"pod-{number}"), Reason.EVICTED, "x", "Warning")
        clock.now_s += 0.3
    assert len(sent()) == 20 + 4, "one a minute after the burst"
    assert events.dropped == 1000 - 24


def test_events_can_be_switched_off(
    api: Api, worker: Worker, sent: Sent, server: ApiStandIn
) -> None:
    events = Events(api, worker, "n1", enabled=False)
    events.emit(HOG_OBJECT, Reason.EVICTED, "x", "Warning")
    assert sent() == [] and server.asked == []
    assert events.dropped == 0


def test_warnings_are_sent_although_other_events_used_the_burst(events: Events, sent: Sent) -> None:
    for number in range(100):
        service = HOG_OBJECT._replace(name=f"web-{number}")
        events.emit(service, Reason.SQUEEZED, "x")
    for number in range(8):
        events.emit(HOG_OBJECT._replace(name=f"hog-{number}"), Reason.EVICTED, "x", "Warning")
    assert [event["reason"] for event in sent()].count("Evicted") == 8
    assert len(sent()) == 20


def test_an_event_whose_creation_was_not_answered_is_not_created_twice(
    events: Events, sent: Sent, server: ApiStandIn
) -> None:
    def lost(asked: Asked) -> tuple[int, dict[str, Any]] | None:
        if asked.method != "POST":
            return None
        if server.objects.get(f"{asked.path}/{(asked.body or {})['metadata']['name']}"):
            return status(409, "exists")
        server._act(asked)
        return 0, {}

    server.before = lost
    events.emit(HOG_OBJECT, Reason.EVICTED, "a")
    assert len(sent()) == 1
    events.emit(HOG_OBJECT, Reason.EVICTED, "a")
    assert [event["series"]["count"] for event in sent()] == [2]
    assert len(server.asked_for("POST")) == 2


def test_long_notes_and_names_are_truncated(events: Events, sent: Sent) -> None:
    events.emit(HOG_OBJECT._replace(name="p" * 253), Reason.EVICTED, "ä" * 2000)
    (event,) = sent()
    note = event["note"].encode()
    assert 1000 < len(note) <= 1024 and note.endswith(b"...")
    assert len(event["metadata"]["name"]) <= 253
    events.emit(HOG_OBJECT._replace(name="q" * 228 + ".-" + "q" * 9), Reason.EVICTED, "")
    names = [event["metadata"]["name"] for event in sent()]
    assert names[1].startswith("q" * 228 + "."), "no label of a name may end with a dash"
    assert not names[1].startswith("q" * 228 + ".-")


def test_refused_events_are_not_fatal(
    events: Events, sent: Sent, server: ApiStandIn, worker: Worker
) -> None:
    server.before = lambda asked: status(403, "no") if asked.method == "POST" else None
    events.emit(HOG_OBJECT, Reason.EVICTED, "a")
    assert sent() == []
    assert worker.errors and worker.failure is None
    server.before = lambda _: None
    events.emit(HOG_OBJECT, Reason.EVICTED, "a")
    assert len(sent()) == 1
