# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``service_level.pods``: where the pods with a profile have their figures."""

from pathlib import Path

import pytest

from controller.config.load import Config, ConfigError, load
from controller.config.sections.service_sources import MetricLine, PodAddress
from controller.core.units import NS_PER_MS, NS_PER_SEC

KUBERNETES = "kubernetes: {node: n}\n"
PROFILE = "name: envoy\nindicators: {service: {sweet_point: %s}}\n"
ENVOY = "port: 9901, path: /stats/prometheus, metric: rq_time, quantile: 0.99, unit: ms"


def config(folder: Path, pods: str, *, top: str = KUBERNETES, sweet_point: str = "20ms") -> Config:
    (folder / "envoy.yaml").write_text(PROFILE % sweet_point)
    file = folder / "config.yaml"
    file.write_text(f"{top}profiles: [envoy.yaml]\nservice_level:\n  pods: {pods}\n")
    return load(file, cpus=4)


@pytest.mark.parametrize(
    ("ip", "url"),
    [
        ("10.1.2.3", "http://10.1.2.3:9901/stats/prometheus"),
        ("fd00::7", "http://[fd00::7]:9901/stats/prometheus"),
    ],
)
def test_the_page_of_a_pod(tmp_path: Path, ip: str, url: str) -> None:
    found = config(tmp_path, f"{{envoy: {{{ENVOY}, labels: {{route: /}}, every: 10s}}}}")
    assert found.service_level is not None
    figures = found.service_level.pods["envoy"]
    source = figures.source_of(PodAddress("shop/web@envoy", "envoy", ip))
    assert isinstance(source.source, MetricLine)
    assert source.source.endpoint.url == url
    line = source.source
    assert (line.metric, line.labels, line.quantile) == ("rq_time", (("route", "/"),), 0.99)
    assert (source.service, source.is_pod) == ("shop/web@envoy", True)
    times = source.unit_ns, source.every_ns, source.timeout_ns, source.max_age_ns
    assert times == (NS_PER_MS, 10 * NS_PER_SEC, 2 * NS_PER_SEC, 32 * NS_PER_SEC)
    assert source.place == f"shop/web@envoy at {url}"


@pytest.mark.parametrize(
    ("pods", "problem"),
    [
        ("{envoy: {metric: x}}", "service_level.pods.envoy.port: is missing"),
        ("{envoy: {port: 0, metric: x}}", "service_level.pods.envoy.port: must be greater than"),
        ('{envoy: {port: 1, metric: x, path: "a b"}}', "service_level.pods.envoy.path: must match"),
        (
            "{envoy: {port: 1, metric: x, every: 1s}}",
            "service_level.pods.envoy.timeout: must not be longer than 'every'",
        ),
        (
            "{envoy: {port: 1, metric: x_bucket, quantile: 0.9}}",
            "service_level.pods.envoy.metric: must be the name without _bucket",
        ),
        ("{envoy: {port: 1, metric: x, url: y}}", "service_level.pods.envoy.url: unknown key"),
        ("{../x: {port: 1, metric: x}}", 'service_level.pods["../x"]: must match pattern'),
    ],
)
def test_one_mistake(tmp_path: Path, pods: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(tmp_path, pods)
    (found,) = [each.split(": ", 1)[1] for each in error.value.problems]
    assert found.startswith(problem), found


def test_the_unit_is_that_of_the_sweet_point(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        config(tmp_path, f"{{envoy: {{{ENVOY}}}}}", sweet_point="20")
    (found,) = error.value.problems
    assert "envoy.yaml:2: indicators.service.sweet_point: '20' has no unit" in found
    assert "service_level.pods.envoy.unit is 'ms'" in found


def test_pods_are_those_of_a_cluster(tmp_path: Path) -> None:
    top = "workloads: [{name: a, cgroup: /a, class: best-effort}]\n"
    with pytest.raises(ConfigError, match=r"service_level.pods: needs the section kubernetes"):
        config(tmp_path, f"{{envoy: {{{ENVOY}}}}}", top=top)
