# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The chart: valid objects, refused values, and a configuration that the agent accepts."""

from pathlib import Path
import subprocess

from helm_python import HelmError, lint
import pytest
import yaml

from controller.config.load import Config, ConfigError, load
from controller.config.profile_set import parse_profiles
from controller.core.model import Mode
from tests.deploy.chart import (
    CASES,
    NAMESPACE,
    Case,
    Manifest,
    find,
    render,
    rendered,
    schema_errors,
)
from tests.support.needs import needs_program
from tools.chart.__main__ import CHART, generated

ROOT = CHART.parents[1]

every_case = pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.name}-{c.operator}")
every_values_file = pytest.mark.parametrize("case", CASES[::2], ids=lambda case: case.name)


@pytest.fixture(autouse=True)
def pod_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment that the downward API of the DaemonSet provides."""
    monkeypatch.setenv("NODE_NAME", "n1")
    monkeypatch.setenv("POD_NAMESPACE", NAMESPACE)


def test_generated_files_are_up_to_date() -> None:
    for path, text in generated().items():
        assert path.read_text() == text, "run: .venv/bin/python -m tools.chart"


@every_values_file
def test_helm_lint_finds_nothing(case: Case) -> None:
    values = yaml.safe_load((CHART / "ci" / f"{case.name}-values.yaml").read_text())
    report = lint(CHART, values, strict=True, kube_version="v1.30.0")
    assert report["errors"] == []
    # The chart has no icon, which would be a URL.
    assert [each["error"] for each in report["messages"]] == ["icon is recommended"]


@every_case
def test_every_object_is_valid(case: Case) -> None:
    assert [problem for each in rendered(case) for problem in schema_errors(each)] == []


def test_the_validator_detects_errors() -> None:
    broken = yaml.safe_load(yaml.safe_dump(find(rendered(CASES[0]), "DaemonSet")))
    broken["spec"]["template"]["spec"]["hostPid"] = True
    assert len(schema_errors(broken)) == 2


@every_case
def test_names_and_labels_identify_the_release(case: Case) -> None:
    for each in rendered(case):
        assert each["metadata"]["name"].startswith(("sweetpoint", "node-qos"))
        assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == "sweetpoint"
        cluster_wide = each["kind"].startswith(("Cluster", "Validating", "Flow", "PriorityLevel"))
        assert cluster_wide or each["metadata"]["namespace"] in (NAMESPACE, "platform")


def agents_config(manifests: tuple[Manifest, ...], home: Path) -> Config:
    """Return the configuration in the agent's ConfigMap, as the agent loads it."""
    (name,) = (
        volume["configMap"]["name"]
        for volume in find(manifests, "DaemonSet")["spec"]["template"]["spec"]["volumes"]
        if "configMap" in volume
    )
    (config_map,) = (
        each
        for each in manifests
        if each["kind"] == "ConfigMap" and each["metadata"]["name"] == name
    )
    file = home / "config.yaml"
    file.write_text(config_map["data"]["config.yaml"])
    return load(file, cpus=8)


@every_values_file
def test_the_agent_reads_its_configuration(case: Case, tmp_path: Path) -> None:
    config = agents_config(rendered(case), tmp_path)
    (container,) = find(rendered(case), "DaemonSet")["spec"]["template"]["spec"]["containers"]
    assert config.http is not None
    assert config.http[1] == container["ports"][0]["containerPort"]
    assert config.kubernetes is not None
    assert config.kubernetes.profiles.config_map is not None
    roles = [each for each in rendered(case) if each["kind"] == "Role"]
    namespace, name = config.kubernetes.profiles.config_map
    assert (namespace, [name]) in [
        (each["metadata"]["namespace"], each["rules"][0]["resourceNames"]) for each in roles
    ]


def test_policies_pass_through(tmp_path: Path) -> None:
    (case,) = (each for each in CASES if each.name == "policies" and not each.operator)
    night, canary = agents_config(rendered(case), tmp_path).policies
    assert [each.from_min for each in night.windows] == [1320, 1320, 0]
    assert [each.until_weekday for each in night.windows] == [None, 0, None]
    assert str(canary.nodes) == "node-restriction.kubernetes.io/pool=canary, no example.com/spot"
    values = {"config": {"policies": [{"name": "a", "set": {"tick": "1s"}}]}}
    with pytest.raises(HelmError, match="tick"):
        list(render(values))


def test_nothing_is_written_by_default(tmp_path: Path) -> None:
    assert agents_config(tuple(render({})), tmp_path).settings.mode is Mode.OBSERVE


def test_profiles_reach_the_agent(tmp_path: Path) -> None:
    enforce = next(case for case in CASES if case.name == "enforce")
    texts = find(rendered(enforce), "ConfigMap", "-profiles")["data"]
    profiles = parse_profiles(texts, "profiles", tick_ns=200_000_000, cpus=8)
    (spec,) = profiles["search"].indicators
    # Helm holds 1,000,000 as a float; the agent must get an integer.
    assert spec.min_samples == 1_000_000


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"mod": "enforce"}, "mod"),
        ({"mode": "on"}, "observe"),
        ({"config": {"tikc": "1s"}}, "tikc"),
        # Keys that the chart sets itself.
        ({"config": {"mode": "enforce"}}, "mode"),
        ({"config": {"state_dir": "/"}}, "state_dir"),
        ({"config": {"kubernetes": {"eviction": {"enabled": "yes"}}}}, "enabled"),
        ({"profiles": {"a": {"indicators": {}}}}, "indicators"),
        ({"profiles": {"../a": {"indicators": {"runq_p99": {"sweet_point": "1ms"}}}}}, "a"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"prometheusRule": {"runbookUrl": "https://a/b: c"}}, "runbookUrl"),
        ({"http": {"host": "127.0.0.1"}}, "loopback address of the pod"),
        ({"networkPolicy": {"enabled": False}}, "http.unprotected"),
        ({"config": {"network": {"devices": [{"name": "eth0"}]}}}, "tokenSecret"),
    ],
)
def test_invalid_values_are_refused(values: Manifest, text: str) -> None:
    with pytest.raises(HelmError, match=text):
        list(render(values))


def test_the_agent_refuses_values_that_the_schema_cannot_check(
    tmp_path: Path,
) -> None:
    # How many CPUs a node has is not known here; the message of the agent has line and field.
    with pytest.raises(ConfigError, match="reserve"):
        agents_config(tuple(render({"config": {"reserve": "1000cpu"}})), tmp_path)


def test_rules_and_dashboards_are_the_committed_ones() -> None:
    manifests = tuple(render({}, operator=True))
    rules = yaml.safe_load((ROOT / "deploy" / "rules" / "sweetpoint.yaml").read_text())
    assert find(manifests, "PrometheusRule")["spec"] == rules
    elsewhere = "https://docs.example.com/RUNBOOK.md"
    values = {"prometheusRule": {"runbookUrl": elsewhere}}
    wrapped = find(render(values, operator=True), "PrometheusRule")["spec"]
    for group in rules["groups"]:
        for rule in (each for each in group["rules"] if "alert" in each):
            link = rule["annotations"]["runbook_url"]
            rule["annotations"]["runbook_url"] = link.replace("docs/RUNBOOK.md", elsewhere)
    assert wrapped == rules
    dashboards = (ROOT / "deploy" / "dashboards").iterdir()
    config_map = find(manifests, "ConfigMap", "-dashboard")
    shown = {name: text.strip() for name, text in config_map["data"].items()}
    assert shown == {each.name: each.read_text().strip() for each in dashboards}
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_the_pod_monitor() -> None:
    # An API server with the operator's definitions (v0.85.0) accepted this object with strict
    # validation. Repeat that check by hand before adding a field.
    case = next(each for each in CASES if each.name == "network" and each.operator)
    token = {"name": "sweetpoint-http", "key": "bearer"}
    labels = {"app.kubernetes.io/name": "sweetpoint", "app.kubernetes.io/instance": "sweetpoint"}
    assert find(rendered(case), "PodMonitor")["spec"] == {
        "selector": {"matchLabels": labels},
        "namespaceSelector": {"matchNames": [NAMESPACE]},
        "sampleLimit": 50_000,
        "podMetricsEndpoints": [
            {
                "port": "http",
                "interval": "15s",
                "authorization": {"credentials": token},
                "relabelings": [
                    {
                        "sourceLabels": ["__meta_kubernetes_pod_node_name"],
                        "targetLabel": "instance",
                    },
                    {"targetLabel": "job", "replacement": "sweetpoint"},
                ],
            }
        ],
    }


@needs_program("promtool")
def test_the_prometheus_rule_contains_a_valid_rule_file(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    spec = find(render({}, operator=True), "PrometheusRule")["spec"]

    def exit_code() -> int:
        file.write_text(yaml.safe_dump(spec))
        return subprocess.run(["promtool", "check", "rules", file], check=False).returncode

    assert exit_code() == 0
    spec["groups"][0]["rules"][0]["four"] = "5m"
    assert exit_code() != 0


def test_without_the_operator_its_objects_are_omitted() -> None:
    kinds = {each["kind"] for each in render({})}
    assert not kinds & {"PodMonitor", "PrometheusRule"}
