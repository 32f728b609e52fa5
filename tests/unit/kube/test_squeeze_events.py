# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Events about squeezes, made from plans."""

from dataclasses import replace

from controller.core.model import Mode
from controller.kube.events import Events
from controller.kube.squeeze_events import SqueezeEvents
from tests.unit.kube.objects import PODS, SERVICE, Sent, plan


def test_a_squeeze_makes_an_event_at_its_begin_and_at_its_end(events: Events, sent: Sent) -> None:
    squeezes = SqueezeEvents(events, "n1", PODS.get)
    for second in range(5):
        squeezes.update(plan(second, 0.01), Mode.ENFORCE)  # below the noticeable demand
    for second in range(5, 60):
        squeezes.update(plan(second, second / 100), Mode.ENFORCE)
    for second in range(60, 88, 2):
        squeezes.update(
            plan(second, 0.5 if second == 70 else 0.0), Mode.ENFORCE
        )  # a pause shorter than 30 s
    (begin,) = sent()
    assert (begin["reason"], begin["regarding"]["name"]) == ("BestEffortSqueezed", "web-0")
    assert begin["note"] == (
        f"cpu: best-effort work is squeezed because {SERVICE} runq_p99 12ms, its sweet point is "
        "3ms (4.0 times); demand 5%"
    )
    for second in range(88, 120):
        squeezes.update(plan(second), Mode.ENFORCE)
    _, end = sent()
    assert end["reason"] == "BestEffortReleased"
    assert end["note"] == (
        f"cpu: best-effort work is no longer squeezed for {SERVICE}, after 65s (demand up to 59%, "
        "deviation up to 1.50)"
    )


def test_two_services_that_suffer_alternately_make_one_event_each(
    events: Events, sent: Sent
) -> None:
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


def test_a_squeeze_for_a_service_without_a_pod_makes_an_event_at_the_node(
    events: Events, sent: Sent
) -> None:
    squeezes = SqueezeEvents(events, "n1", lambda _: None)
    squeezes.update(plan(1, 1.0), Mode.OBSERVE)
    (event,) = sent()
    assert event["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1"}
    assert event["metadata"]["namespace"] == "default"
    assert "would be squeezed (the agent only observes)" in event["note"]
