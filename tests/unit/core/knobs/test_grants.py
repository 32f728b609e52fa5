# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The limit that a best-effort workload requested holds with and without a squeeze."""

from dataclasses import replace
import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.core.decision import Outcome
from controller.core.knob_values import parse_quota
from controller.core.knobs.grants import RequestedLimits
from controller.core.model import (
    CgroupId,
    Knob,
    KnobValue,
    MemorySample,
    MemoryUse,
    Mode,
    QosClass,
    Snapshot,
    Target,
    TargetKind,
    Workload,
)
from controller.core.planner import Planner
from controller.core.settings import MemoryGuard
from controller.demo.simulated_node import SimulatedNode
from controller.workloads.pods.requests import (
    extended_requests,
    parse_quantity,
    requests_of,
)
from tests.sim.plants import MemoryNode
from tests.support.loops.closed_loop import TICK_NS, ClosedLoop, make_settings, make_spec
from tests.support.loops.resource_loop import closed, resource_settings

GIB = 1 << 30
AMOUNTS = st.dictionaries(
    st.integers(0, 9).map(lambda id_: CgroupId("v2", id_)), st.floats(0.01, 100), max_size=10
)


@given(AMOUNTS, AMOUNTS)
def test_a_requested_limit_lowers_and_never_raises(
    grants: dict[CgroupId, float], limits: dict[CgroupId, float]
) -> None:
    bounds = RequestedLimits()
    found = bounds.apply(grants, limits)
    assert found.keys() == grants.keys() | limits.keys()
    for cgroup, amount in found.items():
        assert amount == min(grants.get(cgroup, 1e9), limits.get(cgroup, 1e9))
    assert bounds.apply(dict(grants), limits) is found or not limits


def limited(workloads: tuple[Workload, ...], **limits: Any) -> tuple[Workload, ...]:
    """Return *workloads*, the first best-effort one with the *limits* that it requested."""
    return tuple(
        each._replace(**limits) if number == 1 else each for number, each in enumerate(workloads)
    )


def loop_with_limit(limit_cpus: float, sweet_point_ns: float = 1e9) -> ClosedLoop[SimulatedNode]:
    loop = ClosedLoop(SimulatedNode(seed=1), make_settings(make_spec(sweet_point_ns)))
    first = loop.node.workloads[1]
    assert first.cgroup == loop.node.best_effort[0].cgroup
    loop.planner.set_workloads(limited(loop.node.workloads, limit_cpus=limit_cpus))
    return loop


def test_a_requested_limit_holds_without_a_squeeze() -> None:
    loop = loop_with_limit(0.7)
    plans = loop.run(10)
    assert loop.granted_cpus() == [pytest.approx(0.7, rel=0.001), None]
    (written,) = [action for plan in plans for action in plan.actions]  # written once
    assert written.reason == "the limit that the workload requested"


def test_a_squeeze_goes_below_the_requested_limit_and_back() -> None:
    loop = loop_with_limit(0.7, sweet_point_ns=2e6)
    loop.run(20)
    squeezed, other = loop.granted_cpus()
    assert squeezed is not None and squeezed < 0.6
    assert other is not None
    loop.reconfigure(make_settings(make_spec(1e9)))
    loop.run(400)
    assert loop.granted_cpus() == [pytest.approx(0.7, rel=0.05), None]


def test_the_limit_is_released_with_the_request() -> None:
    loop = loop_with_limit(0.7)
    loop.run(2)
    loop.planner.set_workloads(loop.node.workloads)
    loop.run(2)
    assert loop.granted_cpus() == [None, None]


def test_a_stricter_quota_of_the_operator_stays() -> None:
    quotas = (KnobValue("30000 100000 0"), KnobValue("max 100000 0"))
    node = SimulatedNode(seed=1, quotas=quotas)
    loop = ClosedLoop(node, make_settings(make_spec(1e9)))
    loop.planner.set_workloads(limited(node.workloads, limit_cpus=0.7))
    loop.run(2)
    assert node.value(node.best_effort[0], Knob.CPU_QUOTA) == "30000 100000 0"


def test_observe_mode_reports_the_limit_once() -> None:
    node = SimulatedNode(seed=1)
    planner = Planner(
        make_settings(make_spec(1e9), mode=Mode.OBSERVE),
        limited(node.workloads, limit_cpus=0.7),
    )
    plans = [planner.step(node.snapshot(tick * TICK_NS), ()) for tick in range(20)]
    (reported,) = [action for plan in plans for action in plan.actions]
    cpus = parse_quota(reported.value).cpus
    assert cpus == pytest.approx(0.7, rel=0.001)


def test_the_limit_of_a_service_is_ignored() -> None:
    node = SimulatedNode(seed=1)
    workloads = tuple(each._replace(limit_cpus=0.1) for each in node.workloads[:1])
    planner = Planner(make_settings(make_spec(1e9)), (*workloads, *node.workloads[1:]))
    outcomes: tuple[Outcome, ...] = ()
    for tick in range(10):
        assert planner.step(node.snapshot(tick * TICK_NS), outcomes).actions == ()


def test_memory_is_lowered_in_steps_to_the_requested_limit() -> None:
    node = MemoryNode(0, noise=0.0)
    node.scale = 1e-6
    loop = closed(node)
    loop.planner.set_workloads(limited(node.workloads, limit_memory_bytes=3 * GIB))
    seen: list[KnobValue] = []
    first, second = (each.cgroup.id for each in node.best_effort)
    for _ in range(100):
        loop.run(0.2)
        value = node.knobs.value(first, Knob.MEMORY_HIGH)
        if not seen or value != seen[-1]:
            seen.append(value)
    assert seen[0] == "max"
    assert seen[-1] == str(3 * GIB)
    steps = [int(one) - int(two) for one, two in itertools.pairwise(seen[1:])]
    assert steps and max(steps) <= 64 << 20
    assert node.knobs.value(second, Knob.MEMORY_HIGH) == "max"


class ShortNode(MemoryNode):
    """A node whose memory is measured for the guard; *others* need so many bytes."""

    others = 3 * GIB

    def snapshot(self, now_ns: int) -> Snapshot:
        uses = zip(self.best_effort, self._use(), strict=True)
        found = tuple(MemoryUse(each.cgroup, round(use), round(use)) for each, use in uses)
        memory = MemorySample(GIB, self.others, found, found)
        return replace(super().snapshot(now_ns), memory=memory)


def test_memory_that_is_short_is_shared_without_a_service_that_suffers() -> None:
    node = ShortNode(0, noise=0.0)
    node.scale = 1e-6
    settings = resource_settings(MemoryNode(0))
    loop = ClosedLoop(node, replace(settings, memory=MemoryGuard(margin_bytes=GIB)))
    own = (
        each._replace(memory_at=Target(TargetKind.CGROUP, *each.cgroup, each.path))
        for each in node.best_effort
    )
    services = tuple(each for each in node.workloads if each.qos is QosClass.LS)
    loop.planner.set_workloads((*services, *own))
    loop.run(60)
    first, second = (
        int(node.knobs.value(each.cgroup.id, Knob.MEMORY_HIGH)) for each in node.best_effort
    )
    assert first + second == pytest.approx(4 * GIB, rel=0.1)
    assert first > 1.3 * second
    node.others = GIB
    node.wants = [each / 4 for each in node.wants]
    loop.run(120)
    highs = {node.knobs.value(each.cgroup.id, Knob.MEMORY_HIGH) for each in node.best_effort}
    assert highs == {"max"}


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("1500", 1500),
        ("2k", 2000),
        ("1Gi", GIB),
        ("1.5Gi", 3 * GIB // 2),
        ("1500m", 2),
        ("1e3", 1000),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", None),
        ("111111111111111111Ei", None),
        ("1e99", None),
        ("0", None),
        ("-1", None),
        ("1 ", None),
        ("", None),
        ("9" * 100_000, None),
        (1500, None),
        (None, None),
        (["1"], None),
    ],
)
def test_quantities(text: object, amount: int | None) -> None:
    assert parse_quantity(text) == amount


def container(cpu: object, **more: object) -> dict[str, object]:
    return {"resources": {"limits": {"sweetpoint.dev/cpu": cpu, "cpu": "1"}}, **more}


def test_the_request_of_a_pod_is_computed_as_the_scheduler_does() -> None:
    spec = {
        "containers": [container("500"), container("300"), {"name": "no-limits"}],
        "initContainers": [container("600"), container("200", restartPolicy="Always")],
    }
    assert extended_requests(spec) == {"sweetpoint.dev/cpu": 1000}
    spec["initContainers"] = [container("1200")]
    assert extended_requests(spec) == {"sweetpoint.dev/cpu": 1200}


def test_an_older_name_of_a_resource_stands_for_that_of_today() -> None:
    older = {"koordinator.sh/batch-cpu": "500", "koordinator.sh/batch-memory": "1Gi"}
    requests = [older, {**older, "kubernetes.io/batch-cpu": "200"}]
    spec = {"containers": [{"resources": {"requests": each}} for each in requests]}
    wanted = {"kubernetes.io/batch-cpu": 700, "kubernetes.io/batch-memory": 2 * GIB}
    assert extended_requests(spec) == wanted


def test_the_usual_requests_follow_the_same_rule() -> None:
    def wanting(**requests: str) -> dict[str, object]:
        return {"resources": {"requests": requests, "limits": {"cpu": "8"}}}

    spec = {"containers": [wanting(cpu="250m", memory="64Mi"), wanting(cpu="1")]}
    assert requests_of(spec) == (1.25, 64 << 20)
    spec["initContainers"] = [wanting(memory="1Gi")]
    assert requests_of(spec) == (1.25, 1 << 30)
    assert requests_of({"containers": [wanting(cpu="0", memory="x" * 100)]}) == (None, None)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"containers": "x"},
        {"containers": [None, 1, {"resources": []}, {"resources": {"limits": 7}}]},
        {"containers": [container({"a": 1}), container("-5"), container("9" * 5000)]},
        {"containers": {"resources": {"limits": {"sweetpoint.dev/cpu": "1"}}}},
    ],
)
def test_malformed_resources_are_no_request(spec: dict[str, object]) -> None:
    assert extended_requests(spec) == {}
    assert requests_of(spec) == (None, None)
