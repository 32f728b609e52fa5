# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``law``."""

import pytest

from controller.config.fields import check
from controller.config.sections.law import LawModel, build_law
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


def test_settings_without_the_section_have_no_part() -> None:
    assert not LawSettings().find_harm
    assert LawSettings().micro_probes.per_minute == 0
