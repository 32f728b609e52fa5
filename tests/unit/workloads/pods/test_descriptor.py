# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Katalyst's ServiceProfileDescriptors: parsing, the pods they apply to, derived profiles."""

from collections.abc import Mapping
from dataclasses import replace
import json
import math
from pathlib import Path
from typing import Any

import pytest

from controller.agent.recording import Entry, replay
from controller.config.load import load
from controller.config.profile_set import base_name
from controller.core.decision import Plan
from controller.core.model import CgroupId, IndicatorName, QosClass, Snapshot, Workload
from controller.core.settings import Profile, Settings
from controller.workloads.pods.descriptor import (
    Descriptor,
    DescriptorError,
    DescriptorIndex,
    Point,
    derived_profile,
    parse_descriptor,
)
from controller.workloads.pods.pod import Owner, Pod, parse_pod
from tests.support.kube.pods import UID
from tests.support.kube.pods import plain_pod as pod

TICK_NS = 200_000_000
DEEP: Any = []
for _ in range(100_000):
    DEEP = [DEEP]


def raw(name: str = "web", /, *indicators: object, **reference: object) -> dict[str, Any]:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", **reference}
    spec = {"targetRef": target, "systemIndicator": list(indicators)}
    return {"metadata": {"namespace": "shop", "name": name}, "spec": spec}


def indicator(name: object, **levels: object) -> dict[str, Any]:
    found = [{"indicatorLevel": level, "value": value} for level, value in levels.items()]
    return {"name": name, "indicators": found}


def read(*indicators: object) -> Descriptor:
    return parse_descriptor(raw("web", *indicators))


def points(*indicators: object) -> dict[IndicatorName, float]:
    return {point.indicator: point.value for point in read(*indicators).points}


def problem(*indicators: object) -> str:
    found = read(*indicators)
    assert found.points == ()
    (text,) = found.problems
    return text


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Profile]:
    home = tmp_path_factory.mktemp("config")
    cpi = "cpi: {sweet_point: 1.2, tolerance: 1.3, bins: [{above: 2cpu, sweet_point: 1.4}]}"
    waits = "runq_p99: {sweet_point: 2ms}"
    (home / "p.yaml").write_text(f"name: gold\nindicators: {{{waits}, {cpi}}}\n")
    (home / "config.yaml").write_text("kubernetes: {}\nprofiles: [p.yaml]\n")
    return load(home / "config.yaml", cpus=4).settings.profiles


def test_the_upper_bound_counts_before_the_lower() -> None:
    assert points(indicator("cpi", LowerBound=1.1, UpperBound=1.4)) == {IndicatorName.CPI: 1.4}
    assert points(indicator("cpi", LowerBound=2)) == {IndicatorName.CPI: 2.0}
    assert read(indicator("cpi", UpperBound=1.4)).points == (
        Point(IndicatorName.CPI, 1.4, "cpi UpperBound 1.4"),
    )


@pytest.mark.parametrize(
    ("ms_per_cpu_s", "ratio"), [(460, 0.46 / 1.46), (1000, 0.5), (1, 1 / 1001)]
)
def test_milliseconds_of_waiting_become_a_share(ms_per_cpu_s: float, ratio: float) -> None:
    found = points(indicator("cpu_sched_wait", UpperBound=ms_per_cpu_s))
    assert found[IndicatorName.WAIT_RATIO] == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("raw_indicator", "text"),
    [
        (indicator("cpu_usage_ratio", UpperBound=0.8), "'cpu_usage_ratio': how busy CPUs are"),
        (
            indicator("mem_access_read_lat", UpperBound=80),
            "'mem_access_read_lat': not measured here",
        ),
        (indicator("mbw\n\x1b[31m", UpperBound=80), "'mbw\\n\\x1b[31m': not known"),
        (indicator("x" * 100_000, UpperBound=1), f"'{'x' * 64}': not known"),
        (indicator(DEEP, UpperBound=1), "a list: not known"),
        (indicator(None, UpperBound=1), "a NoneType: not known"),
        ({"name": "cpi", "indicators": DEEP}, "cpi: neither UpperBound nor LowerBound"),
        (indicator("cpi", Middle=1), "cpi: neither UpperBound nor LowerBound"),
        *(
            (indicator("cpi", UpperBound=value, LowerBound=1), "cpi: UpperBound must be a number")
            for value in (0, -1.4, math.nan, math.inf, 10**400, 1.1e6, True, "1.4", None, DEEP)
        ),
    ],
)
def test_an_ignored_indicator_is_reported_in_one_line(
    raw_indicator: dict[str, Any], text: str
) -> None:
    found = problem(raw_indicator)
    assert found.startswith(text) and found.isprintable() and len(found) < 150


def test_a_bad_indicator_does_not_affect_the_others() -> None:
    found = read(
        indicator("cpi", UpperBound=-1), "no indicator", indicator("cpu_sched_wait", UpperBound=1)
    )
    assert [each.indicator for each in found.points] == [IndicatorName.WAIT_RATIO]
    assert len(found.problems) == 1


def test_the_number_of_indicators_is_bounded() -> None:
    found = read(*(indicator(f"n{number}", UpperBound=1) for number in range(5000)))
    assert len(found.problems) == 17
    assert found.problems[-1] == "more than 16 indicators; the others are not read"


@pytest.mark.parametrize(
    "bad",
    [
        {"metadata": {"namespace": "..", "name": "web"}},
        {"metadata": {"namespace": "shop", "name": "a/b"}},
        {"metadata": {"namespace": "shop", "name": "x" * 254}},
        {"metadata": DEEP},
        {"spec": None},
        {"spec": {"targetRef": DEEP}},
        {"spec": {"targetRef": {"kind": "Deployment", "name": "a\0b"}}},
        {"spec": {"targetRef": {"kind": "De/ployment", "name": "web"}}},
        {"spec": {"targetRef": {"name": "web"}}},
    ],
)
def test_a_descriptor_without_a_valid_identity_is_refused_in_one_line(bad: dict[str, Any]) -> None:
    with pytest.raises(DescriptorError) as error:
        parse_descriptor(raw() | bad)
    assert str(error.value).isprintable() and len(str(error.value)) < 500


def of_deployment(name: str) -> dict[str, Any]:
    owner = Owner(kind="ReplicaSet", name=f"{name}-5d4f")
    return {"owner": owner, "labels": {"pod-template-hash": "5d4f"}}


CATALOGUE = DescriptorIndex(
    map(
        parse_descriptor,
        (
            raw("web-spd"),
            raw("web-z"),
            raw("db-spd", kind="StatefulSet", name="db"),
            raw("rs-spd", kind="ReplicaSet", name="lone"),
        ),
    )
)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("web-spd", pod(**of_deployment("web"))),  # of two, the first by name
        ("db-spd", pod(owner=Owner(kind="StatefulSet", name="db"))),
        ("rs-spd", pod(owner=Owner(kind="ReplicaSet", name="lone"))),
        # The annotation of Katalyst's controller goes before the owner.
        ("db-spd", pod(annotations={"spd.katalyst.kubewharf.io/name": "db-spd"})),
        (
            "web-z",
            pod(**of_deployment("web"), annotations={"spd.katalyst.kubewharf.io/name": "web-z"}),
        ),
        (
            "web-spd",
            pod(**of_deployment("web"), annotations={"spd.katalyst.kubewharf.io/name": "gone"}),
        ),
        (None, pod("bank", **of_deployment("web"))),
        (None, pod("bank", annotations={"spd.katalyst.kubewharf.io/name": "web-spd"})),
        (None, pod(owner=Owner(kind="StatefulSet", name="web"))),
        (None, pod(owner=Owner(kind="ReplicaSet", name="web-5d4f"))),
        (None, pod()),
    ],
)
def test_the_descriptor_of_a_pod(name: str | None, given: Pod) -> None:
    found = CATALOGUE.find(given)
    assert (None if found is None else found.name) == name
    assert DescriptorIndex().find(given) is None


def test_the_name_on_a_pod_is_kept() -> None:
    key = "spd.katalyst.kubewharf.io/name"
    meta = {"uid": UID, "namespace": "shop", "name": "p", "annotations": {key: "web-spd"}}
    assert parse_pod(json.loads(json.dumps({"metadata": meta}))).annotations == {key: "web-spd"}


def test_only_the_sweet_point_is_replaced(profiles: Mapping[str, Profile]) -> None:
    gold = profiles["gold"]
    made, unusable = derived_profile(gold, read(indicator("cpi", UpperBound=1.7)), TICK_NS)
    assert unusable == ()
    assert made.name == "gold+shop/web"
    assert (base_name(made.name), base_name(gold.name)) == ("gold", "gold")
    waits, cpi = made.indicators
    assert waits == gold.indicators[0]
    assert cpi == replace(gold.indicators[1], sweet_point=1.7, bins=())
    assert cpi.tolerance == 1.3
    assert replace(made, name="gold", indicators=gold.indicators) == gold


def test_an_indicator_that_the_profile_lacks_is_added(
    profiles: Mapping[str, Profile], tmp_path: Path
) -> None:
    given = read(indicator("cpu_sched_wait", UpperBound=1000))
    made, unusable = derived_profile(profiles["gold"], given, TICK_NS)
    assert unusable == ()
    # The same as in a profile that sets only this sweet point.
    text = "name: gold\nindicators: {wait_ratio: {sweet_point: 50%}}\n"
    (tmp_path / "p.yaml").write_text(text)
    (tmp_path / "c.yaml").write_text("kubernetes: {}\nprofiles: [p.yaml]\n")
    written = load(tmp_path / "c.yaml", cpus=4).settings.profiles["gold"]
    assert made.indicators == (*profiles["gold"].indicators, *written.indicators)


@pytest.mark.parametrize(
    ("raw_indicator", "tick_ns", "text"),
    [
        (indicator("cpi", UpperBound=0.01), TICK_NS, "below the resolution (0.01)"),
        (indicator("cpu_sched_wait", UpperBound=1e-30), TICK_NS, "below the resolution (0.001)"),
        (
            indicator("cpu_sched_wait", UpperBound=9),
            2 * 10**9,
            "the tick is longer than the window",
        ),
    ],
)
def test_a_sweet_point_that_cannot_be_used_is_left_out(
    profiles: Mapping[str, Profile], raw_indicator: dict[str, Any], tick_ns: int, text: str
) -> None:
    gold = profiles["gold"]
    made, (unusable,) = derived_profile(gold, read(raw_indicator), tick_ns)
    assert text in unusable and made.indicators == gold.indicators


def test_a_recording_replays_with_profiles_that_no_file_has(
    profiles: Mapping[str, Profile], tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text("kubernetes: {}\n")
    settings = load(tmp_path / "c.yaml", cpus=4).settings
    made, _ = derived_profile(
        settings.profiles["default"], read(indicator("cpi", UpperBound=1.7)), TICK_NS
    )
    service = Workload("web", CgroupId("cpu", 1), "/web", QosClass.LS, "web", made.name)
    snapshot = Snapshot(time_ns=10**9, age_ns=0, workloads=())
    recorded = Entry(
        snapshot=snapshot,
        outcomes=(),
        plan=Plan(time_ns=10**9),
        anew=True,
        settings=replace(settings, profiles={**settings.profiles, made.name: made}),
        workloads=(service,),
    )
    cases: tuple[tuple[Settings | None, set[str]], ...] = ((None, {"cpi"}), (settings, set()))
    for given, names in cases:
        ((_, plan),) = replay(iter([recorded]), given)
        found = {each.indicator for each in plan.loops} | {each.indicator for each in plan.off}
        assert found == {spec.name for spec in settings.profiles["default"].indicators} | names
