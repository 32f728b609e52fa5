# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``kubernetes:``: the records built from it, and one message per mistake."""

from pathlib import Path
import socket

import jsonschema
import pytest

from controller.config.load import ConfigError, json_schemas, load
from controller.config.sections.kubernetes import KubernetesConfig, ServiceProfiles
from controller.config.sections.kubernetes_capacity import KubeCapacityConfig


def section(tmp_path: Path, text: str) -> KubernetesConfig:
    file = tmp_path / "config.yaml"
    file.write_text(f"kubernetes: {{{text}}}\n")
    found = load(file, cpus=4).kubernetes
    assert found is not None
    return found


def problem(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        section(tmp_path, text)
    (found,) = caught.value.problems
    return found.removeprefix(f"{tmp_path}/config.yaml:1: kubernetes")


def test_defaults_need_no_workloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "node-7.example")
    found = section(tmp_path, "")
    assert found.node == "node-7.example"
    assert found.kubeconfig is None
    assert found.system_namespaces == ("kube-system",)
    assert found.trusted_namespaces == ()
    assert found.cgroup_roots is None
    assert found.service_profiles is ServiceProfiles.NONE
    assert found.events


def test_without_the_downward_api_the_node_has_the_name_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    assert section(tmp_path, "").node == socket.gethostname().lower()


def test_every_field(tmp_path: Path) -> None:
    found = section(
        tmp_path,
        "node: n1, kubeconfig: /etc/kubeconfig, system_namespaces: [kube-system, infra],"
        "trusted_namespaces: [shop], cgroup_roots: [/kubepods.slice, /a/kubepods],"
        "service_profiles: trusted, events: false",
    )
    assert found.node == "n1"
    assert found.kubeconfig == Path("/etc/kubeconfig")
    assert found.system_namespaces == ("infra", "kube-system")
    assert found.trusted_namespaces == ("shop",)
    assert found.cgroup_roots == ("/kubepods.slice", "/a/kubepods")
    assert found.service_profiles is ServiceProfiles.TRUSTED
    assert not found.events


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node: Node_1", ".node: 'Node_1' is not the name of a node"),
        ("node: '../n'", ".node: '../n' is not the name of a node"),
        ("kubeconfig: config", ".kubeconfig: must be in-cluster, or an absolute path"),
        ("kubeconfig: /a/../b", ".kubeconfig: must be in-cluster, or an absolute path"),
        ("system_namespaces: [a/b]", ".system_namespaces[0]: must match pattern"),
        ("system_namespaces: x", ".system_namespaces: must be a valid list"),
        (
            "trusted_namespaces: [kube-system]",
            ".trusted_namespaces: 'kube-system' is a system namespace",
        ),
        ("cgroup_roots: []", ".cgroup_roots: must be auto, or a list"),
        ("cgroup_roots: /kubepods", ".cgroup_roots: must be auto, or a list"),
        ("cgroup_roots: [kubepods]", ".cgroup_roots: must be paths such as /kubepods"),
        ("cgroup_roots: [/a/../b]", ".cgroup_roots: must be paths such as /kubepods"),
        ("cgroup_roots: [/]", ".cgroup_roots: must be paths such as /kubepods"),
        ("cgroup_roots: [[/a]]", ".cgroup_roots: must be paths such as /kubepods"),
        ("service_profiles: some", ".service_profiles: must be 'none', 'trusted' or 'all'"),
        ("service_profiles: trusted", ".service_profiles: trusted needs trusted_namespaces"),
        ("nodes: x", ".nodes: unknown key (did you mean node?)"),
    ],
)
def test_one_wrong_field(tmp_path: Path, text: str, message: str) -> None:
    assert problem(tmp_path, text).startswith(message)


def test_the_name_in_the_environment_is_checked_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_NAME", "a/../../b")
    assert problem(tmp_path, "").startswith(".node: 'a/../../b' is not the name of a node (found")


def test_the_schema_accepts_what_the_model_accepts() -> None:
    schema = json_schemas()["config"]
    for roots in ("auto", ["/kubepods"]):
        jsonschema.validate({"kubernetes": {"cgroup_roots": roots}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"kubernetes": {"cgroup_roots": []}}, schema)


def test_defaults_of_capacity_are_off_and_sweetpoints_names(tmp_path: Path) -> None:
    found = section(tmp_path, "").capacity
    assert not found.enabled
    assert not found.forecast
    assert found.names == ("sweetpoint.dev/cpu", "sweetpoint.dev/memory")
    assert found == KubeCapacityConfig()
    assert (found.interval_ns, found.heartbeat_ns) == (60 * 10**9, 600 * 10**9)


def test_fields_of_capacity(tmp_path: Path) -> None:
    text = "enabled: true, names: koordinator, cpu_reserve: 40%, peak_over: 5m, change: 0.1"
    found = section(tmp_path, f"capacity: {{{text}}}").capacity
    assert found.enabled
    assert found.names == ("kubernetes.io/batch-cpu", "kubernetes.io/batch-memory")
    assert (found.cpu.reserve_ratio, found.memory.reserve_ratio) == (0.4, 0.1)
    assert found.cpu.peak_ns == found.memory.peak_ns == 300 * 10**9
    assert found.change_ratio == 0.1
    assert section(tmp_path, "capacity: {forecast: true}").capacity.forecast
    assert ".capacity.forecast" in problem(tmp_path, "capacity: {forecast: 1h}")
    assert ".capacity.names" in problem(tmp_path, "capacity: {names: yarn}")
    assert ".capacity.interval" in problem(tmp_path, "capacity: {interval: 1ms}")
    assert section(tmp_path, "capacity: {heartbeat: 1h}").capacity.heartbeat_ns == 3600 * 10**9
    assert ".capacity.heartbeat" in problem(tmp_path, "capacity: {heartbeat: 2h}")
