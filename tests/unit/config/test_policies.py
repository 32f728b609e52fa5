# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which policies are in force, what they set, and which of them wins."""

from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from controller.config.load import Config, ConfigError, load
from controller.config.policies import (
    PoliciesInForce,
    PolicyInForce,
    Situation,
    apply,
    find_in_force,
)
from controller.config.rollout_reach import Reach, reach_of, with_reaches
from controller.config.sections.law import LawModel
from controller.config.sections.policies import PolicyLawModel
from controller.config.yaml_document import parse_document
from controller.core.model import Mode
from controller.core.settings import CoreMode

FLEET = """\
kubernetes: {node: n1, eviction: {enabled: true, per_hour: 2, cool_down: 2m}}
mode: enforce
reserve: 500mcpu
memory: {margin: 2GiB}
policies:
  - name: night
    time_zone: Europe/Berlin
    times: [{days: mon-fri, from: "22:00", until: "06:00"}]
    set: {reserve: 100mcpu, kubernetes: {eviction: {per_hour: 6}}}
  - name: canary
    nodes:
      matchLabels: {node-restriction.kubernetes.io/pool: canary}
    set: {mode: observe, memory: {guard: false}}
  - name: weekend
    times: [{from: "18:00", days: fri, until: "mon 06:00"}]
    set: {reserve: 0cpu, core_scheduling: {mode: off}}
"""
CANARY = {"node-restriction.kubernetes.io/pool": "canary"}


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


THURSDAY_NOON, THURSDAY_NIGHT = at("2026-11-26T12:00+01:00"), at("2026-11-26T23:00+01:00")
FRIDAY_NIGHT = at("2026-11-27T23:00+01:00")


def fleet(tmp_path: Path, labels: dict[str, str] | None, now_s: float) -> Config:
    file = tmp_path / "config.yaml"
    file.write_text(FLEET)
    return load(file, cpus=4, labels=labels, now_s=now_s)


def test_by_day_the_file_alone_counts(tmp_path: Path) -> None:
    config = fleet(tmp_path, {}, THURSDAY_NOON)
    assert config.in_force == PoliciesInForce(
        known=("night", "canary", "weekend"), next_change_s=at("2026-11-26T22:00+01:00")
    )
    assert config.settings.mode is Mode.ENFORCE
    assert config.settings.reserve_cpus == 0.5


def test_each_key_is_set_alone(tmp_path: Path) -> None:
    config = fleet(tmp_path, CANARY, THURSDAY_NIGHT)
    labels = "node labels: node-restriction.kubernetes.io/pool=canary"
    assert config.in_force.entries == (
        PolicyInForce("night", 0, "until 2026-11-27 06:00 CET", config.policies[0].sets),
        PolicyInForce("canary", 1, labels, config.policies[1].sets),
    )
    assert config.in_force.next_change_s == at("2026-11-27T06:00+01:00")
    assert config.settings.mode is Mode.OBSERVE
    assert config.settings.reserve_cpus == 0.1
    # The other keys of the same sections are those of the file.
    assert config.settings.eviction == (6, 120 * 10**9)
    assert config.kubernetes is not None
    assert config.kubernetes.eviction.enabled
    assert config.settings.memory is None


def test_a_later_policy_wins_key_by_key(tmp_path: Path) -> None:
    config = fleet(tmp_path, {}, FRIDAY_NIGHT)
    assert config.in_force.names == ("night", "weekend")
    assert config.settings.reserve_cpus == 0.0
    assert config.settings.core.mode is CoreMode.OFF
    assert config.settings.eviction.per_hour == 6


def test_without_labels_a_node_observes_if_a_policy_that_needs_them_sets_the_mode(
    tmp_path: Path,
) -> None:
    config = fleet(tmp_path, None, THURSDAY_NIGHT)
    assert config.in_force.names == ("night",)
    assert config.in_force.undecided == ("canary",)
    assert config.settings.mode is Mode.OBSERVE
    assert config.settings.reserve_cpus == 0.1  # what needs no labels is set
    known = fleet(tmp_path, {}, THURSDAY_NIGHT).in_force
    assert not config.in_force.is_same_as(known)
    file = tmp_path / "config.yaml"
    assert load(file, cpus=4, mode=Mode.ENFORCE).settings.mode is Mode.ENFORCE
    file.write_text(FLEET.replace("mode: observe, ", ""))
    assert load(file, cpus=4).settings.mode is Mode.ENFORCE


def test_an_hour_may_raise_the_mode(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    raises = "  - {name: late, times: [{from: '23:00'}], set: {mode: enforce}}\n"
    file.write_text(FLEET.replace("mode: enforce", "mode: observe") + raises)
    config = load(file, cpus=4, labels={}, now_s=at("2026-11-26T23:30+00:00"))
    assert config.settings.mode is Mode.ENFORCE
    assert load(file, cpus=4, labels={}, now_s=THURSDAY_NOON).settings.mode is Mode.OBSERVE


HOST = """\
workloads: [{name: web, cgroup: /web, class: latency-sensitive, profile: nginx}]
node_labels: {pool: canary}
policies:
  - {name: pool, nodes: {matchLabels: {pool: canary}}, set: {replace_profiles: {nginx: redis}}}
  - {name: other, nodes: {matchLabels: {pool: prod}}, set: {reserve: 1cpu}}
"""


def test_a_plain_host_has_its_labels_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(HOST)
    config = load(file, cpus=4, labels={"pool": "prod"})
    assert config.in_force.names == ("pool",)
    assert [rule.profile for rule in config.workloads] == ["redis"]
    config = load(file, cpus=4, labels={"pool": "prod"}, anywhere=True)
    assert config.in_force.names == ("other",)
    assert [rule.profile for rule in config.workloads] == ["nginx"]


def test_adjacent_windows_are_one_and_a_policy_without_end_has_none(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        HOST + "  - {name: always, times: [{}], set: {reserve: 1cpu}}\n"
        "  - {name: days, times: [{days: 'mon,tue'}, {days: wed, until: '09:00'}],"
        " set: {reserve: 2cpu}}\n"
    )
    monday = at("2026-11-23T10:00+00:00")
    config = load(file, cpus=4, now_s=monday)
    assert config.in_force.next_change_s == at("2026-11-25T09:00+00:00")
    always, days = config.policies[2:]
    end_s = always.end_s(monday)
    assert end_s is not None
    assert end_s > monday + 30 * 86400
    assert days.end_s(config.in_force.next_change_s) is None


def test_a_combination_that_is_refused_names_the_policy(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(HOST + "  - {name: big, times: [{from: '23:00'}], set: {reserve: 64cpu}}\n")
    with pytest.raises(ConfigError) as caught:
        load(file, cpus=4)
    (text,) = caught.value.problems
    assert text.endswith("reserve: must be less than this host's 4 CPUs (policy big)")
    # At a moment only what is in force is checked.
    assert load(file, cpus=4, now_s=THURSDAY_NOON, every_policy=False).in_force.names == ("pool",)


def test_a_policy_may_switch_each_part_of_the_law(tmp_path: Path) -> None:
    parts = [name for name, field in LawModel.model_fields.items() if field.annotation is bool]
    assert [*PolicyLawModel.model_fields] == parts
    file = tmp_path / "config.yaml"
    for part in parts:
        file.write_text(
            "workloads: [{name: web, cgroup: /web, class: latency-sensitive}]\n"
            "law: {micro_probes: {per_minute: 1}}\n"
            f"policies: [{{name: without, set: {{law: {{{part}: false}}}}}}]\n"
        )
        found, paused = load(file, cpus=4), load(file, cpus=4, paused=frozenset({"without"}))
        law, off = paused.settings.law, {part: False}
        assert asdict(found.settings.law) == asdict(law) | off
        assert (getattr(law, part), law.micro_probes.per_minute) == (True, 1.0)


numbers = st.integers(0, 1439).map(lambda each: f'"{each // 60:02}:{each % 60:02}"')
changes = st.fixed_dictionaries(
    {},
    optional={
        "mode": st.sampled_from(["observe", "enforce"]),
        "reserve": st.integers(0, 3).map(lambda each: f"{each}cpu"),
        "memory": st.fixed_dictionaries({"guard": st.sampled_from(["true", "false"])}),
        "eviction": st.dictionaries(st.just("per_hour"), st.integers(1, 60), min_size=1),
        "law": st.fixed_dictionaries({"fast_rise": st.sampled_from(["true", "false"])}),
    },
).filter(bool)


def flow(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(each)}" for key, each in value.items()) + "}"
    return str(value)


@settings(max_examples=40, deadline=None)
@given(sets=st.lists(changes, min_size=1, max_size=5), chosen=st.sets(st.integers(0, 4)))
def test_the_last_policy_that_sets_a_key_decides(
    sets: list[dict[str, object]], chosen: set[int]
) -> None:
    text = "mode: observe\npolicies:\n" + "".join(
        f"  - {{name: p{index}, set: {flow(each)}}}\n" for index, each in enumerate(sets)
    )
    document = parse_document(text, "c")
    entries = [PolicyInForce(f"p{i}", i, "") for i in sorted(chosen) if i < len(sets)]
    found = apply(document, PoliciesInForce(entries=tuple(entries))).data
    assert isinstance(found, dict)
    expected: dict[str, object] = {"mode": "observe"}
    for entry in entries:
        for key, value in sets[entry.place].items():
            own = parse_document(f"x: {flow(value)}", "x").data
            assert isinstance(own, dict)
            expected[key] = own["x"]
    assert {key: each for key, each in found.items() if key != "policies"} == expected
    assert document == parse_document(text, "c")  # it is not changed


def test_no_policy_is_in_force_without_policies() -> None:
    assert find_in_force((), Situation(None, 0.0)) == PoliciesInForce()


ROLLED = """\
kubernetes: {node: n1}
mode: observe
policies:
  - {name: canary, rollout: true, nodes: {matchLabels: {pool: canary}}, set: {mode: enforce}}
  - {name: fixed, nodes: {matchLabels: {pool: canary}}, set: {reserve: 0cpu}}
"""
POOL = {"pool": "canary"}


@pytest.mark.parametrize(
    ("labels", "reach", "names"),
    [
        (POOL, None, ["canary", "fixed"]),
        ({}, None, []),
        (POOL, Reach.EVERYWHERE, ["canary", "fixed"]),
        ({}, Reach.EVERYWHERE, ["canary"]),
        (POOL, Reach.NOWHERE, ["fixed"]),
        ({}, Reach.NOWHERE, []),
    ],
)
def test_a_rollout_puts_its_policy_in_force_on_all_nodes_or_on_none(
    tmp_path: Path, labels: dict[str, str], reach: Reach | None, names: list[str]
) -> None:
    # The other policy is not one of a rollout, whatever is said of it.
    reaches = {} if reach is None else {"canary": reach, "fixed": reach}
    file = tmp_path / "config.yaml"
    file.write_text(ROLLED)
    config = load(file, cpus=4, labels=with_reaches(labels, reaches), now_s=THURSDAY_NOON)
    assert [*config.in_force.names] == names
    assert config.settings.mode is (Mode.ENFORCE if "canary" in names else Mode.OBSERVE)
    promoted = [each.name for each in config.in_force.entries if each.promoted]
    assert promoted == (["canary"] if reach is Reach.EVERYWHERE else [])
    if reach is Reach.EVERYWHERE:
        assert config.in_force.entries[0].because == "rollout: everywhere"


def test_a_label_of_the_node_is_no_reach() -> None:
    forged = {"rollout.sweetpoint.dev/canary": "everywhere", **POOL}
    assert reach_of("canary", with_reaches(forged, {})) is None
    assert reach_of("canary", with_reaches(forged, {"canary": Reach.NOWHERE})) == "nowhere"
    assert with_reaches(forged, {}) == POOL


def test_a_policy_of_a_rollout_selects_canary_nodes(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(ROLLED.replace("nodes: {matchLabels: {pool: canary}}, ", "", 1))
    with pytest.raises(ConfigError, match="needs nodes: the canary nodes"):
        load(file, cpus=4)
