# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``program`` in ``service_level``: what it completes, and what the documentation says of it."""

from pathlib import Path
import re
from typing import Any

import jsonschema
import pytest

from controller.config.load import Config, ConfigError, json_schemas, load
from controller.config.sections.programs import PROGRAMS
from controller.config.sections.service_sources import MetricLine, PodAddress, ServiceSource
from controller.core.units import NS_PER_MS, NS_PER_SEC

DOCUMENT = Path(__file__).parents[4] / "docs" / "SERVICE_LEVEL.md"
PROFILE = "name: shop\nindicators: {service: {sweet_point: 20ms}}\n"
POD = PodAddress("shop", "shop", "10.1.2.3")


def config(folder: Path, level: str) -> Config:
    (folder / "shop.yaml").write_text(PROFILE)
    file = folder / "config.yaml"
    file.write_text(f"kubernetes: {{node: n}}\nprofiles: [shop.yaml]\nservice_level: {level}\n")
    return load(file, cpus=4)


def of_pod(folder: Path, keys: str) -> ServiceSource:
    level = config(folder, f"{{pods: {{shop: {{{keys}}}}}}}").service_level
    assert level is not None
    return level.pods["shop"].source_of(POD)


def of_host(folder: Path, keys: str) -> ServiceSource:
    level = config(folder, f"{{services: {{shop: {{{keys}}}}}}}").service_level
    assert level is not None
    (source,) = level.sources
    return source


def line(source: ServiceSource) -> tuple[str, str, tuple[tuple[str, str], ...], float | None]:
    found = source.source
    assert isinstance(found, MetricLine)
    return found.endpoint.url, found.metric, found.labels, found.quantile


def test_a_program_gives_the_keys_that_are_missing(tmp_path: Path) -> None:
    pod = of_pod(tmp_path, "program: istio, every: 10s")
    destination = (("reporter", "destination"),)
    name = "istio_request_duration_milliseconds"
    assert line(pod) == ("http://10.1.2.3:15020/stats/prometheus", name, destination, 0.99)
    assert (pod.unit_ns, pod.every_ns) == (NS_PER_MS, 10 * NS_PER_SEC)
    host = of_host(tmp_path, "metrics: {program: istio}")
    assert line(host) == ("http://127.0.0.1:15020/stats/prometheus", name, destination, 0.99)
    assert host.unit_ns == NS_PER_MS


def test_given_keys_replace_those_of_the_program(tmp_path: Path) -> None:
    keys = "program: spring, port: 81, metric: http_server_requests_seconds, quantile: 0.5"
    pod = of_pod(tmp_path, f"{keys}, per: null, labels: {{uri: /a}}, unit: ms")
    url, name = "http://10.1.2.3:81/actuator/prometheus", "http_server_requests_seconds"
    assert line(pod) == (url, name, (("uri", "/a"),), 0.5)
    assert pod.unit_ns == NS_PER_MS
    host = of_host(tmp_path, "metrics: {program: haproxy, url: http://a/b}, unit: us")
    assert line(host)[0] == "http://a/b"
    assert host.unit_ns == 1000


@pytest.mark.parametrize(
    ("level", "problem"),
    [
        (
            "{pods: {shop: {program: enovy}}}",
            "service_level.pods.shop: program: unknown program (did you mean envoy?)",
        ),
        ("{pods: {shop: {program: [1]}}}", "service_level.pods.shop: program: unknown program"),
        (
            "{services: {shop: {metrics: {program: x}}}}",
            "service_level.services.shop: program: unknown program (known: envoy, grpc-go",
        ),
        ("{pods: {shop: {program: grpc-go}}}", "service_level.pods.shop.port: is missing"),
        (
            "{services: {shop: {metrics: {program: grpc-go}}}}",
            "service_level.services.shop.metrics.url: is missing",
        ),
        (
            "{pods: {shop: {program: redis, quantile: 0.9}}}",
            "service_level.pods.shop.per: must not be given together with quantile",
        ),
    ],
)
def test_one_mistake(tmp_path: Path, level: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(tmp_path, level)
    (found,) = [each.split(": ", 1)[1] for each in error.value.problems]
    assert found.startswith(problem), found


@pytest.mark.parametrize(
    ("pod", "valid"),
    [
        ({"program": "vllm"}, True),
        ({"port": 1, "metric": "x"}, True),
        ({"program": "no-such"}, False),
        ({"metric": "x"}, False),
        ({"port": 1}, False),
    ],
)
def test_the_schema_wants_a_program_or_the_keys(pod: dict[str, Any], valid: bool) -> None:
    document = {"kubernetes": {"node": "n"}, "service_level": {"pods": {"shop": pod}}}
    validator = jsonschema.Draft202012Validator(json_schemas()["config"])
    assert validator.is_valid(document) is valid


def test_the_documentation_lists_every_program() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| ?(\d*) \| (p99|mean) \|", DOCUMENT.read_text(), re.M)
    expected = [
        (name, str(each.port or ""), "mean" if each.quantile is None else "p99")
        for name, each in PROGRAMS.items()
    ]
    assert rows == expected
