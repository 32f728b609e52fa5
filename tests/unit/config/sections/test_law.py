# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``law``."""

from pathlib import Path

import pytest

from controller.cli.main import main
from controller.config.fields import check
from controller.config.load import json_schemas, load
from controller.config.sections.law import REMOVED, LawModel, build_law
from controller.config.yaml_document import ConfigError, parse_document
from controller.core.settings import LawSettings, MicroProbeLimits


def law(text: str) -> LawSettings:
    document = parse_document(text, "law.yaml")
    return build_law(check(document, LawModel))


def test_the_bounds_of_micro_probes() -> None:
    probes = "micro_probes: {depth: 50%, length: 1s, per_minute: 1}"
    assert law(probes).micro_probes == MicroProbeLimits(0.5, 10**9, 1.0)
    default = law("find_harm: false").micro_probes
    assert default == pytest.approx(MicroProbeLimits(per_minute=3.0))


@pytest.mark.parametrize(
    "wrong", ["{depth: 100%}", "{length: 1ms}", "{per_minute: 11}", "{often: true}"]
)
def test_other_bounds_are_errors(wrong: str) -> None:
    with pytest.raises(ConfigError):
        law(f"micro_probes: {wrong}")


@pytest.fixture
def with_removed_keys(tmp_path: Path) -> Path:
    """Return a configuration that has every removed key, switched off."""
    file = tmp_path / "config.yaml"
    keys = "".join(f"  {name}: false\n" for name in REMOVED)
    workloads = "workloads: [{name: jobs, cgroup: /jobs, class: best-effort}]\n"
    file.write_text(f"{workloads}law:\n  fast_rise: false\n{keys}")
    return file


def test_a_removed_key_is_accepted_and_one_warning_names_them_all(with_removed_keys: Path) -> None:
    config = load(with_removed_keys)
    assert config.settings.law == law("fast_rise: false")
    (warning,) = config.warnings
    assert warning.startswith(f"{with_removed_keys}:2: law: no effect any more, can be removed: ")
    assert all(f"{name} ({now})" in warning for name, now in REMOVED.items())


def test_check_warns_of_removed_keys_and_shows_none(
    with_removed_keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--config", str(with_removed_keys), "--resolved"]) == 0
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert line.startswith("sweetpoint: warning: ")
    assert line.endswith(load(with_removed_keys).warnings[0])
    assert not any(name in shown.out for name in REMOVED)
    with_removed_keys.write_text(shown.out)
    assert load(with_removed_keys).warnings == ()


def test_the_schema_marks_removed_keys() -> None:
    keys = json_schemas()["config"]["$defs"]["LawModel"]["properties"]
    assert {name for name, each in keys.items() if each.get("deprecated")} == set(REMOVED)


def test_settings_without_the_section_have_no_part() -> None:
    assert not LawSettings().find_harm
    assert LawSettings().micro_probes.per_minute == 0
