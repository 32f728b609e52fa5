# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The candidate of a trial: checked as a policy, and what it changes."""

from pathlib import Path

import pytest

from controller.config.candidate import parse_candidate
from controller.config.load import Config, load
from controller.config.policies import Change
from controller.config.yaml_document import ConfigError
from controller.core.settings import CoreMode

FILE = """\
mode: enforce
reserve: 1cpu
law: {fast_rise: false}
workloads: [{name: web, cgroup: /web, class: latency-sensitive, profile: nginx}]
policies:
  - {name: first, set: {reserve: 2cpu, memory: {guard: false}}}
"""
CANDIDATE = """\
name: mine
set:
  reserve: 500mcpu
  replace_profiles: {nginx: redis}
  law: {find_harm: false, fast_rise: false}
  core_scheduling: {mode: on}
"""


def loaded(tmp_path: Path, text: str, file: str = FILE, until_s: float | None = None) -> Config:
    path = tmp_path / "config.yaml"
    path.write_text(file)
    return load(path, cpus=4, candidate=parse_candidate(text, "mine.yaml", until_s))


def test_it_is_the_last_policy_and_wins(tmp_path: Path) -> None:
    config = loaded(tmp_path, CANDIDATE, until_s=1.8e9)
    assert config.in_force.names == ("first", "mine")
    assert config.in_force.entries[1].because == "trial, until 2027-01-15 08:00 UTC"
    assert config.in_force.candidate is not None
    assert config.in_force.candidate.until_s == 1.8e9
    assert config.settings.reserve_cpus == 0.5
    assert [rule.profile for rule in config.workloads] == ["redis"]
    assert not config.settings.law.find_harm
    assert config.settings.core.mode is CoreMode.ON
    assert config.settings.memory is None  # of the other policy


def test_there_must_be_room_for_one_more_policy(tmp_path: Path) -> None:
    policies = ", ".join(f"{{name: p{n}, set: {{reserve: 2cpu}}}}" for n in range(16))
    with pytest.raises(ConfigError, match=r"config\.yaml:1: policies: the trial needs one of the"):
        loaded(tmp_path, CANDIDATE, f"policies: [{policies}]\n")


def test_what_it_changes_is_said_with_the_value_without_it(tmp_path: Path) -> None:
    changes = loaded(tmp_path, CANDIDATE).in_force.changes
    assert changes["mine"] == (
        Change("reserve", "500mcpu", "2cpu"),
        Change("replace_profiles.nginx", "redis", "nginx"),
        Change("law.find_harm", False, True),
        Change("core_scheduling.mode", "on", "auto"),
    )
    # The candidate undoes what the policy does with this key.
    assert changes["first"] == (Change("memory.guard", False, True),)


def test_without_policies_in_the_file_it_is_the_only_one(tmp_path: Path) -> None:
    file = FILE.partition("policies:")[0]
    config = loaded(tmp_path, CANDIDATE, file)
    assert config.in_force.names == ("mine",)
    assert config.in_force.changes["mine"][0] == Change("reserve", "500mcpu", "1cpu")


def test_a_default_is_said_where_the_file_has_no_value(tmp_path: Path) -> None:
    file = FILE.partition("policies:")[0].replace("reserve: 1cpu\n", "")
    text = "name: mine\nset: {reserve: 0cpu, memory: {margin: 1GiB}, eviction: {per_hour: 1}}\n"
    reserve, margin, per_hour = loaded(tmp_path, text, file).in_force.changes["mine"]
    assert reserve == Change("reserve", "0cpu", "100mcpu")
    assert margin[:2] == ("memory.margin", "1GiB")
    assert margin.without is not None
    assert per_hour.without is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: mine\nset:\n  tick: 1s\n", r"mine.yaml:3: set.tick: a policy cannot set this key"),
        ("name: mine\nset: {mode: observe}\n", "mine.yaml:2: set.mode: the agent enforces"),
        ("name: mine\nset: {trial: {enabled: true}}\n", "set.trial: one trial cannot begin"),
        ("name: mine\nset: {law: {x: 1}}\n", "set.law.x: a policy cannot set this key"),
        ("name: mine\nset: {reserve: 1}\n", "mine.yaml:2: set.reserve: "),
        ("name: mine\nset: {reserve: 1cpu}\nnodes: {}\n", "mine.yaml:3: nodes: a candidate has a"),
        ("workloads: []\n", "mine.yaml:1: workloads: a candidate has a name and what it sets"),
        ("set: {reserve: 1cpu}\n", "name: is missing"),
        ("name: Mine\nset: {reserve: 1cpu}\n", "mine.yaml:1: name: "),
    ],
)
def test_what_a_candidate_cannot_set_is_named_with_all_that_it_can(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_candidate(text, "mine.yaml")
    last = caught.value.problems[-1]
    assert last.startswith("a candidate can set: reserve, replace_profiles, memory: {guard, margin")
    assert last.endswith("kubernetes: {eviction: {per_hour, cool_down}}")


@pytest.mark.parametrize("key", ["tick", "modes"])
def test_the_mode_is_not_offered_for_an_unknown_key(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_candidate(f"name: mine\nset: {{{key}: 1s}}\n", "mine.yaml")
    first, last = caught.value.problems
    assert "(known: core_scheduling, eviction, kubernetes, law, memory, " in first
    assert "mode" not in first.partition("(")[2] + last.replace("core_scheduling: {mode}", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: mine\nset:\n  reserve: 64cpu\n", "mine.yaml:3: set.reserve: must be less than"),
        ("name: first\nset: {reserve: 0cpu}\n", "mine.yaml:1: name: 'first' is already the name"),
        ("name: mine\nset: {}\n", "mine.yaml:2: set: must have at least one key"),
        ("name: mine\nset: {replace_profiles: {nginx: nosuch}}\n", "mine.yaml:2: set.replace_prof"),
        ("name: mine\nset: {kubernetes: {eviction: {per_hour: 1}}}\n", "mine.yaml:2: .*no effect"),
    ],
)
def test_what_this_node_refuses_names_the_file_of_the_candidate(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path, text)


@pytest.mark.parametrize("file", ["policies: 1\n", "[]\n", "mode: enforce\npolicies: {}\n"])
def test_a_file_that_is_refused_without_it_is_refused_with_it(file: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        loaded(tmp_path, CANDIDATE, file)


def test_the_digest_is_that_of_what_it_sets() -> None:
    digest = parse_candidate(CANDIDATE, "one").digest
    assert parse_candidate("# more\n" + CANDIDATE, "two").digest == digest
    other = CANDIDATE.replace("find_harm: false", "find_harm: true")
    assert parse_candidate(other, "one").digest != digest
