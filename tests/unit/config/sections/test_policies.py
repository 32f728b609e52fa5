# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``policies:``: what it accepts, and one message per mistake."""

from pathlib import Path
from zoneinfo import ZoneInfo

import jsonschema
import pytest
import yaml

from controller.config.calendar_window import Window
from controller.config.load import ConfigError, json_schemas, load
from controller.config.sections.policies import MAX_POLICIES

HEAD = "workloads: [{name: web, cgroup: /web, class: latency-sensitive}]\npolicies:\n"
ONE = f"{HEAD}  - name: one\n    set: {{mode: observe}}\n"


def problems(tmp_path: Path, text: str, cpus: int = 4) -> list[str]:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, cpus=cpus)
    return [each.removeprefix(f"{tmp_path}/") for each in caught.value.problems]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("name: Night", "policies[0].name: must match pattern"),
        ("times: [{from: '24:00'}]", "policies[0].times[0].from: must match pattern"),
        ("times: [{until: '6:00'}]", "policies[0].times[0].until: must match pattern"),
        ("times: [{until: 'monday 06:00'}]", "policies[0].times[0].until: must match pattern"),
        ("times: [{days: mon-}]", "policies[0].times[0].days: must match pattern"),
        ("times: [{days: 1-5}]", "policies[0].times[0].days: must match pattern"),
        ("times: [{dates: 32}]", "policies[0].times[0].dates: must match pattern"),
        ("times: [{dates: 31, months: feb}]", "policies[0].times: feb has no day 31"),
        ("times: [{dates: '31', months: 'jun,sep'}]", "policies[0].times: jun,sep has no day 31"),
        ("times: [{cron: '* * * * *'}]", "policies[0].times[0].cron: unknown key (known: dates,"),
        ("time_zone: Europe/Berln", "(did you mean Europe/Berlin?), not 'Europe/Berln'"),
        ("time_zone: ../../etc/passwd", "policies[0].time_zone: must be the name of a time zone"),
        ("time_zone: Europe", "policies[0].time_zone: must be the name of a time zone"),
        ("time_zone: 1", "policies[0].time_zone: must be the name of a time zone"),
        (
            "nodes: {matchLabels: {pool: [a]}}",
            "policies[0].nodes.matchLabels.pool: Input should be a valid string",
        ),
        ("nodes: {matchLabels: {-: a}}", "policies[0].nodes.matchLabels"),
        ("nodes: {matchLabels: {pool: 'a b'}}", "policies[0].nodes.matchLabels.pool: must match"),
        (
            "nodes: {matchExpressions: [{key: a, operator: In}]}",
            "policies[0].nodes.matchExpressions: a: In needs values",
        ),
        (
            "nodes: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}",
            "policies[0].nodes.matchExpressions: a: Exists takes no values",
        ),
        (
            "nodes: {matchExpressions: [{key: a, operator: Gt, values: ['1']}]}",
            "must be 'In', 'NotIn', 'Exists' or 'DoesNotExist'",
        ),
    ],
)
def test_a_mistake_is_one_message_with_line_and_field(tmp_path: Path, line: str, text: str) -> None:
    name = "" if line.startswith("name") else "    name: one\n"
    (found,) = problems(tmp_path, f"{HEAD}  - {line}\n{name}    set: {{mode: observe}}\n")
    assert found.startswith("c.yaml:3: policies[0].")
    assert text in found


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ("{}", "policies[0].set: must have at least one key"),
        ("{tick: 1s}", "policies[0].set.tick: a policy cannot set this key (known: core_sched"),
        ("{http: 'off'}", "policies[0].set.http: a policy cannot set this key"),
        ("{modes: observe}", "set.modes: a policy cannot set this key (did you mean mode?)"),
        ("{eviction: {standalone: kill}}", "set.eviction.standalone: a policy cannot set this"),
        ("{memory: {capacity: 1GiB}}", "policies[0].set.memory.capacity: a policy cannot set"),
        ("{network: {}}", "policies[0].set.network: a policy cannot set this key"),
        ("{mode: off}", "policies[0].set.mode: must be 'observe' or 'enforce', not 'off'"),
        ("{reserve: 1}", "policies[0].set.reserve: "),
        ("{kubernetes: {eviction: {per_hour: 1}}}", "kubernetes: has no effect: the file has no"),
        ("{reserve: 4cpu}", "set.reserve: must be less than this host's 4 CPUs (policy one)"),
        ("{replace_profiles: {nginx: x}}", "set.replace_profiles.nginx: no profile named 'x'"),
    ],
)
def test_what_a_policy_sets_is_checked_in_its_place(
    tmp_path: Path, changes: str, text: str
) -> None:
    found, *others = problems(tmp_path, f"{HEAD}  - name: one\n    set: {changes}\n")
    assert found.startswith("c.yaml:4: policies[0].set")
    assert text in found
    assert not others


def test_mistakes_between_entries(tmp_path: Path) -> None:
    twice = f"{ONE}  - name: one\n    set: {{mode: enforce}}\n"
    assert problems(tmp_path, twice) == [
        "c.yaml:5: policies[1].name: 'one' is already the name of a policy"
    ]
    many = HEAD + "".join(
        f"  - {{name: p{number}, set: {{mode: observe}}}}\n" for number in range(MAX_POLICIES + 1)
    )
    (found,) = problems(tmp_path, many)
    assert "at most 16 items" in found
    node = "kubernetes: {node: n1}\n"
    (found,) = problems(tmp_path, node + "node_labels: {pool: a}\n")
    assert "node_labels: has no effect with a section kubernetes" in found
    policy = "policies: [{name: one, set: {eviction: {per_hour: 1}}}]\n"
    (found,) = problems(tmp_path, node + policy)
    assert "policies[0].set.eviction: has no effect: set kubernetes.eviction" in found


def test_every_field_of_a_time(tmp_path: Path) -> None:
    text = f"""{HEAD}  - name: one
    time_zone: Europe/Berlin
    times:
      - {{days: "fri-sun, tue", dates: "30-2", months: nov-jan, from: "18:30", until: "mon 06:00"}}
      - {{dates: 1}}
    set: {{reserve: 1cpu}}
"""
    file = tmp_path / "c.yaml"
    file.write_text(text)
    jsonschema.validate(yaml.safe_load(text), json_schemas()["config"])
    first, second = load(file, cpus=4).policies[0].windows
    berlin = ZoneInfo("Europe/Berlin")
    assert first == Window(
        zone=berlin,
        weekdays=frozenset({1, 4, 5, 6}),
        dates=frozenset({30, 31, 1, 2}),
        months=frozenset({11, 12, 1}),
        from_min=1110,
        until_min=360,
        until_weekday=0,
    )
    assert second == Window(zone=berlin, dates=frozenset({1}))
