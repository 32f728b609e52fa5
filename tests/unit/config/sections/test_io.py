# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``io.classes``: the classes, the profiles that name them, and contradictions."""

from pathlib import Path

import pytest

from controller.config.load import Config, ConfigError, load
from controller.config.sections.io import IoClassConfig
from controller.core.settings import DiskLimits

HEAD = """\
workloads:
  - {name: web, cgroup: /web, class: latency-sensitive, profile: web}
profiles: [web.yaml]
"""
PROFILE = "name: web\nindicators: {runq_p99: {sweet_point: 4ms}}\nio_class: %s\n"


def config(folder: Path, classes: str, chosen: str = "gold") -> Config:
    (folder / "web.yaml").write_text(PROFILE % chosen)
    file = folder / "config.yaml"
    file.write_text(f"{HEAD}io:\n  classes: {classes}\n")
    return load(file, cpus=4)


def test_classes_and_the_profile_that_names_one(tmp_path: Path) -> None:
    limits = "{/dev/sda: {read: 64kB/s, write_iops: 50}, 8:16: {write: 1MB/s}}"
    bulk = f"{{limits: {limits}, koordinator: [LS], annotation: true}}"
    found = config(tmp_path, f"{{gold: {{weight: 800}}, bulk: {bulk}}}")
    assert found.io_classes == (
        IoClassConfig("gold", 800),
        IoClassConfig(
            "bulk",
            limits=(
                DiskLimits("/dev/sda", rbps=64_000, wiops=50),
                DiskLimits("8:16", wbps=1_000_000),
            ),
            koordinator=frozenset({"LS"}),
            annotation=True,
        ),
    )
    assert found.settings.profiles["web"].io_class == "gold"
    assert found.settings.profiles["default"].io_class == ""


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ("{gold: {weight: 0}}", r"config.yaml:5: io.classes.gold.weight: "),
        ("{gold: {weight: 10001}}", r"config.yaml:5: io.classes.gold.weight: "),
        ("{gold: {}}", r"config.yaml:5: io.classes.gold: must have a weight or limits"),
        (
            "{gold: {limits: {/dev/sda: {}}}}",
            r"config.yaml:5: io.classes.gold.limits.*/dev/sda.*: must have at least one limit",
        ),
        ("{gold: {limits: {sda: {read: 1MB/s}}}}", r"config.yaml:5: .*must match pattern"),
        ("{gold: {limits: {8:0: {read: 1MB}}}}", r"config.yaml:5: .*is not a rate"),
        ("{gold: {limits: {8:0: {read_iops: 0}}}}", r"config.yaml:5: .*read_iops: "),
        ("{gold: {weight: 1, koordinator: [BE]}}", r"config.yaml:5: .*gold.koordinator\[0\]: "),
        ("{gold: {weight: 1}, ../x: {}}", r"config.yaml:5: io.classes\[.*: must match pattern"),
        (
            "{gold: {weight: 1, koordinator: [LS]}, b: {weight: 1, koordinator: [LSR, LS]}}",
            r"config.yaml:5: .*LS already belongs to the class 'gold'",
        ),
        ("{silver: {weight: 1}}", r"web.yaml:3: io_class: io.classes .* has no 'gold'"),
    ],
)
def test_messages_name_the_place(tmp_path: Path, classes: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, classes)
