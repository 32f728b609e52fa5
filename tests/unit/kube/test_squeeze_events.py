# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Events about squeezes, made from plans."""

from dataclasses import replace

from controller.core.decision import Plan, SlowBecause, SlowService, Verdict, describe_slow
from controller.core.in_force import HeldKnob, InForce
from controller.core.model import Channel, Knob, KnobValue, Mode, Target, TargetKind
from controller.kube.events import Events
from controller.kube.squeeze_events import SqueezeEvents
from tests.unit.kube.objects import PODS, SERVICE, Sent, plan

JOB = Target(TargetKind.CGROUP, "cpu", 7, "/batch")
HELD = HeldKnob(
    target=JOB,
    knob=Knob.CPU_QUOTA,
    value=KnobValue("5000 100000 0"),
    original=KnobValue("max 100000 0"),
    since_ns=0,
    changed_ns=0,
    reason="",
    channel=Channel.CPU,
    service=SERVICE,
)
FREE = InForce()


def held(service: str = SERVICE) -> InForce:
    """Return the record of a quota that is in force for *service*."""
    return InForce(knobs=(HELD._replace(service=service),))


def test_a_squeeze_makes_an_event_at_its_begin_and_at_its_end(events: Events, sent: Sent) -> None:
    squeezes = SqueezeEvents(events, "n1", PODS.get)
    for second in range(5):
        squeezes.update(plan(second, 0.01), held(), Mode.ENFORCE)  # below the noticeable demand
    for second in range(5, 60):
        squeezes.update(plan(second, second / 100), held(), Mode.ENFORCE)
    for second in range(60, 88, 2):  # a pause shorter than 30 s
        now = held() if second == 70 else FREE
        squeezes.update(plan(second, 0.5 if second == 70 else 0.0), now, Mode.ENFORCE)
    (begin,) = sent()
    assert (begin["reason"], begin["regarding"]["name"]) == ("BestEffortSqueezed", "web-0")
    assert begin["note"] == (
        f"cpu: best-effort work is squeezed because {SERVICE} runq_p99 12ms, its sweet point is "
        "3ms (4.0 times); demand 5%"
    )
    for second in range(88, 120):
        squeezes.update(plan(second), FREE, Mode.ENFORCE)
    _, end = sent()
    assert end["reason"] == "BestEffortReleased"
    assert end["note"] == (
        f"cpu: best-effort work is no longer squeezed for {SERVICE}, after 65s (demand up to 59%, "
        "deviation up to 1.50)"
    )


def test_a_squeeze_lasts_as_long_as_its_quota(events: Events, sent: Sent) -> None:
    squeezes = SqueezeEvents(events, "n1", PODS.get)
    squeezes.update(plan(0, 0.5), held(), Mode.ENFORCE)
    for second in range(1, 100):  # the demand is over, and the quota stays for its hold-off time
        squeezes.update(plan(second), held(), Mode.ENFORCE)
    assert [event["reason"] for event in sent()] == ["BestEffortSqueezed"]
    for second in range(100, 131):
        squeezes.update(plan(second), FREE, Mode.ENFORCE)
    assert "after 99s" in sent()[-1]["note"]


def test_a_demand_that_moves_no_knob_is_no_squeeze(events: Events, sent: Sent) -> None:
    squeezes = SqueezeEvents(events, "n1", PODS.get)
    for second in range(60):
        squeezes.update(plan(second, 1.0), FREE, Mode.ENFORCE)
    assert sent() == []


def test_two_services_that_suffer_alternately_make_one_event_each(
    events: Events, sent: Sent
) -> None:
    squeezes = SqueezeEvents(events, "n1", lambda _: None)
    for second in range(100):
        now = held(("shop/a@default", "shop/b@default")[second % 2])
        squeezes.update(plan(second, 0.5), now, Mode.ENFORCE)
    assert [event["reason"] for event in sent()] == ["BestEffortSqueezed"]
    assert sent()[0]["series"]["count"] == 2
    for second in range(100, 140):
        squeezes.update(Plan(time_ns=second * 1_000_000_000), FREE, Mode.ENFORCE)
    notes = [event["note"] for event in sent() if event["reason"] == "BestEffortReleased"]
    assert len(notes) == 1 and "for shop/a@default, after 98s" in notes[0]


def test_a_squeeze_for_a_service_without_a_pod_makes_an_event_at_the_node(
    events: Events, sent: Sent
) -> None:
    squeezes = SqueezeEvents(events, "n1", lambda _: None)
    squeezes.update(plan(1, 1.0), held(), Mode.OBSERVE)
    (event,) = sent()
    assert event["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1"}
    assert event["metadata"]["namespace"] == "default"
    assert "would be squeezed (the agent only observes)" in event["note"]


def test_a_service_that_is_slow_for_another_cause_makes_an_event_without_names(
    events: Events, sent: Sent
) -> None:
    squeezes = SqueezeEvents(events, "n1", PODS.get)

    def slow(because: SlowBecause) -> Plan:
        found = SlowService(
            service=SERVICE, because=because, name="other/secret", share=0.6, evidence="60% of it"
        )
        text = describe_slow(because, found.name, found.evidence)
        return replace(plan(1), slow=(found,), verdicts=(Verdict(subject=SERVICE, text=text),))

    squeezes.update(slow(SlowBecause.BEST_EFFORT), FREE, Mode.ENFORCE)
    squeezes.update(replace(slow(SlowBecause.SERVICE), verdicts=()), FREE, Mode.ENFORCE)
    assert sent() == []
    squeezes.update(slow(SlowBecause.SERVICE), FREE, Mode.ENFORCE)
    (event,) = sent()
    assert (event["reason"], event["regarding"]["name"]) == ("ServiceSlow", "web-0")
    assert event["note"] == "slow (another-service): 60% of it"
