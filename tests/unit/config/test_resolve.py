# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The resolved configuration: loading it gives the configuration that it was made from."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.config.explained import explain_document
from controller.config.fields import Strict
from controller.config.load import Config, load
from controller.config.models import ConfigModel
from controller.config.resolve import resolve

HOST = """\
mode: enforce
http: off
workloads:
  - {name: web, cgroup: /web/, class: latency-sensitive, profile: own}
  - {name: "1e3", cgroup: "/batch/*", class: best-effort, core_group: "2"}
  - {name: db, cgroup: /db, class: latency-sensitive, service: shop}
profiles: [own.yaml]
network:
  devices: [{name: eth0, egress: 1gbit, ingress: off, tiers: {best-effort: {guaranteed: 1%}}}]
  limits: [{workload: "batch*", egress: 10mbit}]
service_level:
  services: {web: {metrics: {url: "http://127.0.0.1:9/metrics", metric: latency}, unit: ms}}
io: {disks: {/dev/sda: {read: 1GB/s, write: 500MB/s}}}
counters: {llc_misses: r412e}
"""
NODE = """\
kubernetes:
  node: n1
  cgroup_roots: [/kubepods]
  trusted_namespaces: [shop]
  profiles: {rules: [{profile: nginx, namespace: shop, labels: {app: web}}]}
  capacity: {enabled: true, cpu_reserve: 0.2}
"""
OWN = "name: own\nindicators: {runq_p99: {sweet_point: 3ms}, service: {sweet_point: 40ms}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.yaml").write_text(OWN)
    return tmp_path


def without_places(config: Config) -> Config:
    """Return *config* without the file's path and the lines of its entries."""
    network = config.network
    if network is not None:
        network = replace(
            network, devices=tuple(replace(each, origin="") for each in network.devices)
        )
    return replace(
        config,
        path=Path(),
        workloads=tuple(replace(each, origin="") for each in config.workloads),
        network=network,
    )


@pytest.mark.parametrize("text", [HOST, NODE])
def test_loading_the_output_gives_the_same_configuration(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    file = folder / "config.yaml"
    file.write_text(text)
    config, data = resolve(file)
    assert config == load(file)
    # From another directory: the profile files are found all the same.
    again = tmp_path_factory.mktemp("elsewhere") / "resolved.yaml"
    again.write_text(explain_document(ConfigModel, data))
    assert without_places(load(again)) == without_places(config)
    # And once more: nothing is left to fill in.
    assert resolve(again)[1] == data


def missing(model: type[Strict], data: dict[str, Any]) -> list[str]:
    """Return the fields of *model* with a default other than None that *data* lacks."""
    return [
        name
        for name, field in model.model_fields.items()
        if (field.alias or name) not in data
        and not field.is_required()
        and field.get_default() is not None
    ]


def test_every_default_is_filled_in(folder: Path) -> None:
    file = folder / "config.yaml"
    file.write_text(HOST)
    data = resolve(file)[1]
    assert not missing(ConfigModel, data)
    assert data["tick"] == "200ms"
    assert data["http"] == "off"
    assert data["workloads"][1] == {
        "name": "1e3",
        "cgroup": "/batch/*",
        "class": "best-effort",
        "core_group": "2",
        "service": "1e3",
    }
    assert data["workloads"][2]["profile"] == "default"
    assert data["profiles"] == [str(folder / "own.yaml")]
    # Models in lists, in mappings and in optional fields.
    assert data["network"]["tiers"]["latency-sensitive"] == {"guaranteed": "60%", "max": "100%"}
    assert data["network"]["devices"][0]["tiers"]["best-effort"]["max"] == "100%"
    assert data["service_level"]["services"]["web"]["every"] == "5s"
