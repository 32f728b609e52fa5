# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``service_level:`` of the configuration."""

from pathlib import Path

import pytest

from controller.config.load import ConfigError, load
from controller.config.sections.service_sources import (
    Endpoint,
    JsonField,
    MetricLine,
    PrometheusQuery,
    Push,
    ServiceSource,
)
from controller.core.units import NS_PER_MS, NS_PER_SEC

NAMES = ("shop", "api", "queue", "cache")
WORKLOADS = "workloads:\n" + "".join(
    f"  - {{name: {name}, cgroup: /{name}, class: latency-sensitive}}\n" for name in NAMES
)
GOOD = """\
service_level:
  socket: /run/x/socket
  socket_group: daemon
  services:
    shop:
      prometheus:
        url: https://prom.example:9090/base
        query: histogram_quantile(0.99, x)
        token_file: /run/token
        header_files: {X-Scope-OrgID: /run/tenant}
        ca_file: /run/ca.pem
      every: 10s
      max_age: 1m
    api:
      metrics: {url: "http://127.0.0.1/metrics", metric: p99, labels: {route: /, le: "1"}}
      unit: ms
      timeout: 500ms
    queue: {json: {url: "http://[::1]:80/", pointer: /a/0}, unit: number}
    cache: {push: {users: [redis, 33]}, unit: us}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(WORKLOADS + text)
    return path


def test_every_kind_of_source(tmp_path: Path) -> None:
    config = load(write(tmp_path, GOOD), cpus=4).service_level
    assert config is not None
    assert (config.socket, config.group) == (Path("/run/x/socket"), "daemon")
    shop, api, queue, cache = config.sources
    assert shop == ServiceSource(
        service="shop",
        source=PrometheusQuery(
            endpoint=Endpoint(
                url="https://prom.example:9090/base",
                token_file=Path("/run/token"),
                header_files=(("X-Scope-OrgID", Path("/run/tenant")),),
                ca_file=Path("/run/ca.pem"),
            ),
            query="histogram_quantile(0.99, x)",
        ),
        unit_ns=NS_PER_SEC,
        every_ns=10 * NS_PER_SEC,
        timeout_ns=2 * NS_PER_SEC,
        max_age_ns=60 * NS_PER_SEC,
    )
    assert isinstance(api.source, MetricLine)
    assert api.source.labels == (("le", "1"), ("route", "/"))
    assert api.source.quantile is None
    assert (api.unit_ns, api.timeout_ns) == (NS_PER_MS, 500 * NS_PER_MS)
    assert api.max_age_ns == 15 * NS_PER_SEC + 500 * NS_PER_MS
    assert isinstance(queue.source, JsonField)
    assert queue.unit_ns is None
    assert cache.source == Push(users=("redis", 33))


def test_a_quantile_of_a_histogram(tmp_path: Path) -> None:
    metrics = "{url: http://127.0.0.1, metric: request_seconds, quantile: 0.99}"
    text = f"service_level: {{services: {{shop: {{metrics: {metrics}}}}}}}\n"
    config = load(write(tmp_path, text), cpus=4).service_level
    assert config is not None
    (shop,) = config.sources
    assert isinstance(shop.source, MetricLine)
    assert (shop.source.metric, shop.source.quantile) == ("request_seconds", 0.99)


def test_without_the_section_there_is_no_source(tmp_path: Path) -> None:
    assert load(write(tmp_path, ""), cpus=4).service_level is None


SHOP = "service_level.services.shop"


@pytest.mark.parametrize(
    ("services", "problem"),
    [
        ("{}", "service_level: must have services, or pods"),
        ("{shop: {}}", f"{SHOP}: must have exactly one of prometheus, metrics, json, push"),
        (
            "{shop: {push: {}, json: {url: http://a, pointer: /}}}",
            f"{SHOP}: must have exactly one of prometheus, metrics, json, push, not json and push",
        ),
        ("{blog: {push: {}}}", "service_level.services.blog: no workload belongs to this service"),
        ("{shop: {push: {users: []}}}", f"{SHOP}.push.users: must have at least one entry"),
        ("{shop: {push: {user: [a]}}}", f"{SHOP}.push.user: unknown key (did you mean users?)"),
        ("{shop: {push: {users: [-1]}}}", f"{SHOP}.push.users[0]: must match pattern"),
        ("{shop: {push: {}, unit: m}}", f"{SHOP}.unit: must match pattern"),
        (
            "{shop: {push: {}, every: 1s, timeout: 3s}}",
            f"{SHOP}.timeout: must not be longer than 'every'",
        ),
        (
            "{shop: {json: {url: http://a, pointer: /}, every: 1m, max_age: 30s}}",
            f"{SHOP}.max_age: must not be shorter than 'every'",
        ),
        (
            "{shop: {metrics: {url: http://a, metric: x, quantile: 1}}}",
            f"{SHOP}.metrics.quantile: must be less than 1",
        ),
        (
            "{shop: {metrics: {url: http://a, metric: x_bucket, quantile: 0.9}}}",
            f"{SHOP}.metrics.metric: must be the name without _bucket",
        ),
        (
            '{shop: {metrics: {url: http://a, metric: x, labels: {le: "1"}, quantile: 0.9}}}',
            f"{SHOP}.metrics.labels: must not choose a bucket",
        ),
        ("{shop: {json: {url: http://a, pointer: a}}}", f"{SHOP}.json.pointer: must match"),
        ("{shop: {json: {url: ftp://a, pointer: /}}}", f"{SHOP}.json.url: must be a URL such"),
        ('{shop: {json: {url: "http://a b", pointer: /}}}', f"{SHOP}.json.url: must be a URL"),
        ("{shop: {json: {url: http://u:p@a, pointer: /}}}", f"{SHOP}.json.url: must not contain"),
        ("{shop: {json: {url: http://a:b, pointer: /}}}", f"{SHOP}.json.url: is not a URL"),
        ('{shop: {json: {url: "http://a/#b", pointer: /}}}', f"{SHOP}.json.url: must have neither"),
        (
            "{shop: {json: {url: http://a, pointer: /, token_file: /t}}}",
            f"{SHOP}.json.token_file: needs https",
        ),
        (
            "{shop: {json: {url: http://127.0.0.1, pointer: /, token_file: t}}}",
            f"{SHOP}.json.token_file: token_file: must be an absolute path",
        ),
        (
            "{shop: {json: {url: http://a, pointer: /, ca_file: /t}}}",
            f"{SHOP}.json.ca_file: is only used with https",
        ),
        (
            "{shop: {json: {url: http://127.0.0.1, pointer: /, header_files: {Host: /t}}}}",
            f"{SHOP}.json.header_files: Host cannot be set",
        ),
        (
            '{shop: {json: {url: http://127.0.0.1, pointer: /, header_files: {"A: b": /t}}}}',
            f'{SHOP}.json.header_files["A: b"]',
        ),
    ],
)
def test_one_mistake(tmp_path: Path, services: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(write(tmp_path, f"service_level:\n  services: {services}\n"), cpus=4)
    found = [p.split(": ", 1)[1] for p in error.value.problems]
    assert len(found) == 1, found
    assert found[0].startswith(problem), found[0]


STEERED = """\
name: steered
indicators:
  service: {sweet_point: %s}
"""


PLACE = "steered.yaml:3: indicators.service.sweet_point"
UNIT = "config.yaml: service_level.services.shop.unit is"


@pytest.mark.parametrize(
    ("sweet_point", "unit", "problem"),
    [
        ("20ms", "s", None),
        ("20", "number", None),
        (
            "20ms",
            "number",
            f"{PLACE}: '20ms' is a time, but the figure is none ({UNIT} 'number'): write a number, "
            "or set that unit to s, ms, us or ns",
        ),
        (
            "20",
            "ms",
            f"{PLACE}: '20' has no unit, but the figure is a time ({UNIT} 'ms'): write 20ms or "
            "20s, or set that unit to number",
        ),
        (
            "{objective: 10}",
            "s",
            f"{PLACE}.objective: '10' has no unit, but the figure is a time ({UNIT} 's'): write "
            "10ms or 10s, or set that unit to number",
        ),
        (
            "20ms",
            None,
            "config.yaml:6: service_level.services: 'shop' has a sweet point for its own figure, "
            "but no source here: add one of prometheus, metrics, json, push",
        ),
    ],
)
def test_a_sweet_point_needs_a_source_of_its_unit(
    tmp_path: Path, sweet_point: str, unit: str | None, problem: str | None
) -> None:
    """A mistake is told with file, line and key, and what to write."""
    (tmp_path / "steered.yaml").write_text(STEERED % sweet_point)
    path = tmp_path / "config.yaml"
    service = "api" if unit is None else "shop"
    path.write_text(
        "profiles: [steered.yaml]\n"
        "workloads:\n"
        "  - {name: shop, cgroup: /shop, class: latency-sensitive, profile: steered}\n"
        "  - {name: api, cgroup: /api, class: latency-sensitive}\n"
        "service_level:\n"
        f"  services: {{{service}: {{push: {{}}, unit: {unit or 's'}}}}}\n"
    )
    if problem is None:
        config = load(path, cpus=4)
        assert config.service_level is not None
        return
    with pytest.raises(ConfigError) as error:
        load(path, cpus=4)
    (found,) = error.value.problems
    assert found.replace(f"{tmp_path}/", "") == problem


@pytest.mark.parametrize(
    ("indicator", "problem"),
    [
        ("service: {sweet_point: {objective: 10x}}", "service.sweet_point.objective: '10x' is"),
        ("runq_p99: {sweet_point: {objective: 10}}", "runq_p99.sweet_point: an objective is for"),
        (
            "runq_p99: {sweet_point: {learn: true, until_sure: 4}}",
            "runq_p99.sweet_point.until_sure: '4' is not a duration such as 200ms",
        ),
    ],
)
def test_a_mistake_in_a_profile_is_told_once_at_its_key(
    tmp_path: Path, indicator: str, problem: str
) -> None:
    (tmp_path / "steered.yaml").write_text(f"name: steered\nindicators:\n  {indicator}\n")
    path = tmp_path / "config.yaml"
    path.write_text(
        "profiles: [steered.yaml]\n"
        "workloads: [{name: shop, cgroup: /shop, class: latency-sensitive, profile: steered}]\n"
    )
    with pytest.raises(ConfigError) as error:
        load(path, cpus=4)
    (found,) = error.value.problems
    assert found.startswith(f"{tmp_path}/steered.yaml:3: indicators.{problem}")


@pytest.mark.parametrize("socket", ["run/x", "/run/../x", "/" + "x" * 108])
def test_an_invalid_socket_path(tmp_path: Path, socket: str) -> None:
    text = f"service_level:\n  socket: {socket}\n  services: {{shop: {{push: {{}}}}}}\n"
    with pytest.raises(ConfigError, match=r"config.yaml:\d+: service_level.socket: must be"):
        load(write(tmp_path, text), cpus=4)
