# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``kubernetes.profiles:``: the records built from it, one message per mistake."""

from pathlib import Path

import jsonschema
import pytest

from controller.config.load import ConfigError, json_schemas, load
from controller.config.sections.kubernetes_profiles import KubeProfilesConfig, ProfileRule
from controller.config.yaml_document import read_document

EVERYTHING = """\
config_map: tuning, namespace: ops, default: gold, match_apps: false,
allow: {gold: [shop, bank], redis: []},
rules: [{profile: gold, namespace: shop, service_account: cart},
        {profile: redis, labels: {tier: cache, example.org/x: ""}}]"""


def section(tmp_path: Path, text: str) -> KubeProfilesConfig:
    file = tmp_path / "config.yaml"
    file.write_text(f"kubernetes: {{profiles: {{{text}}}}}\n")
    found = load(file, cpus=4).kubernetes
    assert found is not None
    jsonschema.validate(read_document(file).data, json_schemas()["config"])
    return found.profiles


def test_every_field(tmp_path: Path) -> None:
    found = section(tmp_path, EVERYTHING)
    assert found == KubeProfilesConfig(
        config_map=("ops", "tuning"),
        default="gold",
        rules=(
            ProfileRule(profile="gold", namespace="shop", service_account="cart"),
            ProfileRule(profile="redis", labels=(("example.org/x", ""), ("tier", "cache"))),
        ),
        match_apps=False,
        allow={"gold": frozenset({"shop", "bank"}), "redis": frozenset()},
    )
    assert found.label_keys == {"tier", "example.org/x"}


def test_defaults(tmp_path: Path) -> None:
    assert section(tmp_path, "") == KubeProfilesConfig()


def test_the_default_namespace_is_that_of_the_agents_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POD_NAMESPACE", "agents")
    assert section(tmp_path, "config_map: tuning").config_map == ("agents", "tuning")
    mounted = tmp_path / "namespace"
    mounted.write_text("mounted\n")
    monkeypatch.delenv("POD_NAMESPACE")
    where = "controller.config.sections.kubernetes_profiles._OWN_NAMESPACE"
    monkeypatch.setattr(where, mounted)
    assert section(tmp_path, "config_map: tuning").config_map == ("mounted", "tuning")
    monkeypatch.setattr(where, tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"profiles\.namespace: '' is not the name of a name"):
        section(tmp_path, "config_map: tuning")
    assert section(tmp_path, "default: gold").config_map is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("config_map: ../x, namespace: ops", ".config_map: "),
        ("config_map: x, namespace: a/b", ".namespace: 'a/b' is not the name of a namespace"),
        ("default: Gold", ".default: "),
        ("rules: [{namespace: shop}]", ".rules[0].profile: is missing"),
        ("rules: [{profile: gold}]", ".rules[0]: has no condition; for all pods set default"),
        (
            "rules: [{profile: gold, service_account: x}]",
            ".rules[0].service_account: needs namespace: other namespaces",
        ),
        ("rules: [{profile: gold, labels: {a: 'b c'}}]", ".rules[0].labels.a: "),
        ("rules: [{profile: gold, labels: {'a b': x}}]", '.rules[0].labels["a b"]: '),
        ("rules: [{profile: gold, label: {a: b}}]", ".rules[0].label: unknown key (did you mean"),
        ("allow: {gold: shop}", ".allow.gold: "),
        ("configmap: x", ".configmap: unknown key (did you mean config_map?)"),
    ],
)
def test_one_mistake(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        section(tmp_path, text)
    found = [p.split(": kubernetes.profiles", 1)[1] for p in caught.value.problems]
    assert any(each.startswith(problem) for each in found), found
