# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The sections ``eviction:`` and ``kubernetes.eviction:`` of the configuration."""

from pathlib import Path

import jsonschema
import pytest
import yaml

from controller.config.load import Config, ConfigError, json_schemas, load
from controller.config.sections.eviction import (
    EvictionConfig,
    KubeEvictionConfig,
    MarkEffect,
    StandaloneAction,
)
from controller.core.settings import EvictionLimits

MINUTE_NS = 60 * 10**9
PROFILE = "name: mine\nindicators: {runq_p99: {sweet_point: 3ms}}\nevict: {enabled: true}\n"
WORKLOADS = "workloads: [{name: web, cgroup: /web, class: latency-sensitive}]\n"


def config(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    (tmp_path / "mine.yaml").write_text(PROFILE)
    jsonschema.validate(yaml.safe_load(text), json_schemas()["config"])
    return load(file, cpus=4)


def test_evictions_are_off_by_default(tmp_path: Path) -> None:
    plain = config(tmp_path, WORKLOADS)
    assert plain.eviction == EvictionConfig(StandaloneAction.OFF, 10 * MINUTE_NS)
    assert plain.settings.eviction == EvictionLimits(per_hour=3, cool_down_ns=MINUTE_NS)
    node = config(tmp_path, "kubernetes: {node: n1}\n").kubernetes
    assert node is not None
    assert node.eviction == KubeEvictionConfig(
        False, MarkEffect("PreferNoSchedule"), 10 * MINUTE_NS
    )


def test_every_field(tmp_path: Path) -> None:
    found = config(
        tmp_path,
        "eviction: {standalone: freeze, freeze_for: 1m, per_hour: 9, cool_down: 5m}\n" + WORKLOADS,
    )
    assert found.eviction == EvictionConfig(StandaloneAction.FREEZE, MINUTE_NS)
    assert found.settings.eviction == EvictionLimits(per_hour=9, cool_down_ns=5 * MINUTE_NS)
    found = config(
        tmp_path,
        "kubernetes: {node: n1, eviction: {enabled: true, mark: NoSchedule, mark_for: 2m,"
        " per_hour: 1, cool_down: 2m}}\n",
    )
    assert found.kubernetes is not None
    assert found.kubernetes.eviction == KubeEvictionConfig(
        True, MarkEffect.NO_SCHEDULE, 2 * MINUTE_NS
    )
    assert found.settings.eviction == EvictionLimits(per_hour=1, cool_down_ns=2 * MINUTE_NS)


@pytest.mark.parametrize("section", ["kubernetes: {node: n1}", "eviction: {standalone: kill}"])
def test_a_profile_can_evict_only_with_a_way_to_evict(tmp_path: Path, section: str) -> None:
    found = config(tmp_path, f"{section}\nprofiles: [mine.yaml]\n{WORKLOADS}")
    assert found.settings.profiles["mine"].evict_enabled
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, f"profiles: [mine.yaml]\n{WORKLOADS}")
    assert "mine.yaml:3: evict.enabled: no way to evict" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eviction: {standalone: delete}", "1: eviction.standalone: must be 'off', 'freeze' or"),
        ("eviction: {per_hour: 0}", "1: eviction.per_hour: must be greater than or equal to 1"),
        ("eviction: {cool_down: 1s}", "1: eviction.cool_down: must be between 10s and 24h"),
        ("kubernetes: {eviction: {mark: NoExecute}}", "1: kubernetes.eviction.mark: must be"),
        ("kubernetes: {eviction: {mark_for: 1s}}", "1: kubernetes.eviction.mark_for: must be"),
        ("kubernetes: {eviction: {standalone: kill}}", "1: kubernetes.eviction.standalone: unkn"),
    ],
)
def test_one_wrong_field(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"{text}\n{WORKLOADS}")
    with pytest.raises(ConfigError) as caught:
        load(file, cpus=4)
    assert caught.value.problems[0].startswith(f"{file}:{message}")
