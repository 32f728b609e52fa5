# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Quantities that the agent would refuse at its start are refused by the chart."""

from collections.abc import Iterator
from functools import reduce
import json
import re
from typing import Any

from helm_python import HelmError
import pytest
import yaml

from controller.config.fields import check
from controller.config.models import ConfigModel, ProfileModel
from controller.config.yaml_document import ConfigError, parse_document
from tests.deploy.chart import Manifest, render
from tools.chart.__main__ import CHART, schema
from tools.chart.bounds import ANY

BOUNDS = json.loads((CHART / "files" / "bounds.json").read_text())
DISK = "/dev/nvme0n1"
WINDOW = ("profiles", "a", "indicators", "runq_p99", "window")
SQUEEZE = ("profiles", "a", "knobs", "cpu.quota", "squeeze")
# One quantity of each kind, with values outside and at both bounds.
OUTSIDE = (
    (("config", "tick"), "0ms"),
    (("config", "tick"), "49.9 ms"),
    (("config", "tick"), "10001ms"),
    (("config", "reserve"), "1025cpu"),
    (("config", "budget", "cpu"), "0.9mcpu"),
    (("config", "budget", "memory"), "64.1GiB"),
    (("config", "core_scheduling", "overlap"), "100.5%"),
    (("config", "core_scheduling", "overlap"), 1.5),
    (("config", "io", "disks", DISK, "read"), "999kB/s"),
    (WINDOW, "49ms"),
    (SQUEEZE, "101/s"),
)
INSIDE = (
    ("50ms", "0cpu", "1mcpu", "1MiB", "0%", "1MB/s", "50ms", "0.01/s"),
    ("10s", "1024cpu", "1024 cpus", "64GiB", 1, "1000 GB / s", "1h", "100 /s"),
)
PATHS = (
    ("config", "tick"),
    ("config", "reserve"),
    ("config", "budget", "cpu"),
    ("config", "budget", "memory"),
    ("config", "core_scheduling", "overlap"),
    ("config", "io", "disks", DISK, "read"),
    WINDOW,
    SQUEEZE,
)


def values() -> Manifest:
    """Return values that are valid, with what the quantities of the tests need beside them."""
    return {
        "config": {"io": {"disks": {DISK: {"read": "1GB/s", "write": "1GB/s"}}}},
        "profiles": {"a": {"description": "x", "indicators": {"runq_p99": {"sweet_point": "1ms"}}}},
    }


def put(into: Manifest, path: tuple[str, ...], value: object) -> None:
    inner = reduce(lambda node, key: node.setdefault(key, {}), path[:-1], into)
    inner[path[-1]] = value


def agents_problem(given: Manifest) -> str:
    """Return what the agent says about *given*; empty if it accepts it."""
    config = {"workloads": [], **given["config"]}
    profile = {"name": "a", **given["profiles"]["a"]}
    try:
        check(parse_document(yaml.safe_dump(config), "config"), ConfigModel)
        check(parse_document(yaml.safe_dump(profile), "a"), ProfileModel)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("path", "value"), OUTSIDE)
def test_what_is_out_of_bounds_is_refused_with_its_place(path: tuple[str, ...], value: Any) -> None:
    given = values()
    assert agents_problem(given) == ""
    put(given, path, value)
    assert "must be between" in agents_problem(given)
    with pytest.raises(HelmError) as refused:
        list(render(given))
    assert f"{'.'.join(path)}: {value} must be between " in str(refused.value)


@pytest.mark.parametrize("at", INSIDE)
def test_bounds_are_accepted(at: tuple[Any, ...]) -> None:
    given = values()
    for path, value in zip(PATHS, at, strict=True):
        put(given, path, value)
    assert agents_problem(given) == ""
    assert list(render(given))


def test_every_quantity_of_the_schema_has_bounds() -> None:
    """The paths of the bounds are from the models; here they are found in the schema."""
    known = {tuple(each["path"]): (each["from"], each["to"]) for each in BOUNDS["quantities"]}
    found = dict(described(schema(), schema()["$defs"], ()))
    assert known == found
    assert {path[0] for path in known} == {"config", "profiles", "rollout"}


def described(
    node: Any, models: Manifest, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], tuple[str, str]]]:
    """Yield each quantity below *node* of a schema: its path, and the bounds that it describes."""
    if not isinstance(node, dict):
        return
    if "$ref" in node:
        yield from described(models[node["$ref"].rpartition("/")[2]], models, path)
    bounds = re.search(r"From (\S+) to (\S+)\.$", str(node.get("description", "")))
    if "pattern" in node and bounds:
        yield path, (bounds[1], bounds[2])
    for key in ("anyOf", "oneOf", "allOf"):
        for each in node.get(key, ()):
            yield from described(each, models, path)
    for name, each in node.get("properties", {}).items():
        yield from described(each, models, (*path, name))
    for each in (*node.get("patternProperties", {}).values(), node.get("additionalProperties")):
        yield from described(each, models, (*path, ANY))
    yield from described(node.get("items"), models, (*path, ANY))
