# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The state directory, read without the check of the rest, is what the check finds."""

from pathlib import Path

import pytest

from controller.config.load import ConfigError, load
from controller.config.state_dir import read_state_dir

RULE = "workloads: [{name: batch, cgroup: /batch, class: best-effort}]\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", "/run/sweetpoint"),
        ("state_dir: /run/other", "/run/other"),
        ('state_dir: "/run/with space/"', "/run/with space"),
        ("mode: enforce\nhttp: 'off'\nstate_dir: /a//b", "/a/b"),
    ],
)
def test_a_valid_one(line: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"{line}\n{RULE}")
    assert read_state_dir(file) == load(file).state_dir == Path(expected)


@pytest.mark.parametrize(
    "text",
    [
        f"state_dir: run\n{RULE}",
        f"state_dir: /run/../etc\n{RULE}",
        f'state_dir: "/run\\0"\n{RULE}',
        f"state_dir: 5\n{RULE}",
        f"state_dir: null\n{RULE}",
        f"state_dir: [/run]\n{RULE}",
        "[state_dir, /run]\n",
        "text\n",
    ],
)
def test_an_invalid_one_is_left_to_the_check(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert read_state_dir(file) is None
    with pytest.raises(ConfigError):
        load(file)


@pytest.mark.parametrize("text", ["", "state_dir: [", "state_dir: &a /run\n"])
def test_what_is_no_yaml_is_an_error(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        read_state_dir(file)
