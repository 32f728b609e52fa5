# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Rules, evaluated by promtool: alerts that fire with their texts or do not, and aggregates."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
import re
import subprocess
from typing import Any

import yaml

from tests.deploy.record_cases import RECORDS, RecordCase
from tests.deploy.rule_cases import FIRES, QUIET, Case

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "rules" / "sweetpoint.yaml"
RUNBOOK = ROOT / "docs" / "RUNBOOK.md"

# From this time on a case is evaluated every 5 minutes, which no alert of a day can tell.
_LONG_MINUTES = 600


def every_rule() -> list[dict[str, Any]]:
    document = yaml.safe_load(RULES.read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def rules() -> list[dict[str, Any]]:
    """Return the alerts."""
    return [rule for rule in every_rule() if "alert" in rule]


def expected(case: Case) -> list[dict[str, Any]]:
    """Return the alert that promtool expects: the texts of the rule with templates filled in."""
    if not case.labels:
        return []
    found = [
        rule
        for rule in rules()
        if rule["alert"] == case.alert and rule["labels"]["severity"] == case.severity
    ]
    assert len(found) == 1, case.alert
    annotations = dict(found[0]["annotations"])
    for template, text in case.filled.items():
        assert any(template in each for each in annotations.values()), (case.alert, template)
        annotations = {key: each.replace(template, text) for key, each in annotations.items()}
    assert not any("{{" in each for each in annotations.values()), annotations
    labels = {key: value for key, value in case.labels.items() if key}
    return [{"exp_labels": labels | {"severity": case.severity}, "exp_annotations": annotations}]


def _samples(values: str) -> str:
    """Replace "0x9" (ten zeros) by "0+0x9", because older versions of promtool lack "0x9"."""
    return re.sub(r"(?<![\d.+x_-])(\d+)x(\d+)", r"\1+0x\2", values)


def check(cases: Sequence[Case], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run promtool on *cases*."""
    tests = [
        _test(f"{number}: {case.alert}", case.series)
        | {
            "alert_rule_test": [
                {
                    "eval_time": f"{case.minute}m",
                    "alertname": case.alert,
                    "exp_alerts": expected(case),
                }
            ]
        }
        for number, case in enumerate(cases)
    ]
    return _run(tests, directory, [case.minute for case in cases])


def check_records(cases: Sequence[RecordCase], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run promtool on *cases* of recording rules."""
    tests = [
        _test(f"{number}: {case.record}", case.series)
        | {
            "promql_expr_test": [
                {
                    # The rate of a counter, which Prometheus extrapolates, is not exact.
                    "expr": f"round({case.record}, 0.001)",
                    "eval_time": f"{case.minute}m",
                    "exp_samples": [
                        {"labels": f"{{{labels}}}", "value": value}
                        for labels, value in case.values.items()
                    ],
                }
            ]
        }
        for number, case in enumerate(cases)
    ]
    return _run(tests, directory, [case.minute for case in cases])


def _test(name: str, series: Mapping[str, str]) -> dict[str, Any]:
    found = [{"series": each, "values": _samples(values)} for each, values in series.items()]
    return {"name": name, "interval": "1m", "input_series": found}


def _run(
    tests: Sequence[dict[str, Any]], directory: Path, minutes: Sequence[int]
) -> subprocess.CompletedProcess[str]:
    """Run promtool on *tests*, which end after *minutes* each."""
    files = []
    for step, is_long in (("1m", False), ("5m", True)):
        chosen = [
            test
            for test, end in zip(tests, minutes, strict=True)
            if (end >= _LONG_MINUTES) is is_long
        ]
        document = {"rule_files": [str(RULES)], "evaluation_interval": step, "tests": chosen}
        files.append(directory / f"{step}.yaml")
        files[-1].write_text(yaml.safe_dump(document))
    return subprocess.run(
        ["promtool", "test", "rules", *map(str, files)], capture_output=True, text=True, check=False
    )


def test_every_aggregate_has_the_values_that_it_should(tmp_path: Path) -> None:
    done = check_records(RECORDS, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_reports_each_aggregate_that_is_wrong(tmp_path: Path) -> None:
    wrong = [replace(each, values=dict.fromkeys(each.values, 77.0)) for each in RECORDS]
    done = check_records(wrong, tmp_path)
    assert done.returncode == 1
    assert len(re.findall(r"expr: ", done.stderr)) == len(RECORDS)


def test_every_aggregate_has_a_case() -> None:
    assert {case.record for case in RECORDS} == {
        rule["record"] for rule in every_rule() if "record" in rule
    }


def test_every_alert_fires_when_it_should(tmp_path: Path) -> None:
    done = check(FIRES, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_alert_fires_when_it_should_not(tmp_path: Path) -> None:
    done = check(QUIET, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_reports_each_alert_that_is_not_expected(tmp_path: Path) -> None:
    done = check([Case(each.alert, each.minute, each.series) for each in FIRES], tmp_path)
    assert done.returncode == 1
    reported = re.findall(r"name: (\d+): ", done.stderr)
    assert sorted(map(int, reported)) == list(range(len(FIRES)))


def test_every_rule_has_a_case_of_each_kind() -> None:
    every = {(rule["alert"], rule["labels"]["severity"]) for rule in rules()}
    assert {(case.alert, case.severity) for case in FIRES} == every
    assert {case.alert for case in QUIET} == {alert for alert, _ in every}


def test_every_alert_has_texts_and_a_section_in_the_runbook() -> None:
    headings = re.findall(r"^## (.+)$", RUNBOOK.read_text(), re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    for rule in rules():
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert page == "docs/RUNBOOK.md"
        assert anchor == rule["alert"].lower()
        assert anchor in anchors
    # There is no section for an alert that does not exist.
    alerts = {rule["alert"].lower() for rule in rules()}
    assert {each for each in anchors if each.startswith("sweetpoint")} == alerts


def test_alerts_have_the_same_prefix() -> None:
    assert not [rule["alert"] for rule in rules() if not re.match("Sweetpoint[A-Z]", rule["alert"])]
