# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``resctrl.classes``: the classes, the profiles that name them, and contradictions."""

from pathlib import Path

import pytest

from controller.config.load import Config, ConfigError, load
from controller.config.sections.resctrl import ResctrlClass

HEAD = """\
workloads:
  - {name: web, cgroup: /web, class: latency-sensitive, profile: web}
profiles: [web.yaml]
"""
PROFILE = "name: web\nindicators: {runq_p99: {sweet_point: 4ms}}\nresctrl_class: %s\n"


def config(folder: Path, classes: str, chosen: str = "gold") -> Config:
    (folder / "web.yaml").write_text(PROFILE % chosen)
    file = folder / "config.yaml"
    file.write_text(f"{HEAD}resctrl:\n  classes: {classes}\n")
    return load(file, cpus=4)


def test_classes_and_the_profile_that_names_one(tmp_path: Path) -> None:
    text = "{gold: {}, silver: {l3: [0%, 0.5], mb: 30%, koordinator: [LS], annotation: true}}"
    found = config(tmp_path, text)
    assert found.resctrl.classes == (
        ResctrlClass("gold", 0, 1, 1),
        ResctrlClass("silver", 0, 0.5, 0.3, frozenset({"LS"}), annotation=True),
    )
    assert found.resctrl.own_groups == {
        "sweetpoint-best-effort",
        "sweetpoint-gold",
        "sweetpoint-silver",
    }
    assert found.settings.profiles["web"].resctrl_class == "gold"
    assert found.settings.profiles["default"].resctrl_class == ""


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ("{gold: {l3: [50%, 50%]}}", r"config.yaml:5: resctrl.classes.gold.l3: must begin below"),
        ("{gold: {l3: [0%, 101%]}}", r"config.yaml:5: resctrl.classes.gold.l3\[1\]: "),
        ("{gold: {l3: [0%]}}", r"config.yaml:5: resctrl.classes.gold.l3: "),
        ("{gold: {mb: 0%}}", r"config.yaml:5: resctrl.classes.gold.mb: "),
        ("{gold: {koordinator: [BE]}}", r"config.yaml:5: resctrl.classes.gold.koordinator\[0\]: "),
        ("{gold: {}, ../x: {}}", r"config.yaml:5: resctrl.classes\[.*: must match pattern"),
        ("{gold: {}, best-effort: {}}", r"config.yaml:5: .*is that of best-effort work"),
        (
            "{gold: {koordinator: [LS]}, b: {koordinator: [LSR, LS]}}",
            r"config.yaml:5: .*LS already belongs to the class 'gold'",
        ),
        ("{silver: {}}", r"web.yaml:3: resctrl_class: resctrl.classes .* has no 'gold'"),
    ],
)
def test_messages_name_the_place(tmp_path: Path, classes: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, classes)
