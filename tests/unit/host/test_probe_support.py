# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a kernel lacks for good: BTF, and memory that programs may read."""

from pathlib import Path

import pytest

from controller.host.probe_support import find_lockdown, find_unsupported


@pytest.fixture
def btf(tmp_path: Path) -> Path:
    path = tmp_path / "vmlinux"
    path.touch()
    return path


def lockdown(home: Path, text: str) -> tuple[Path, ...]:
    """Return the paths of a file with *text*, the first of which does not exist."""
    path = home / "lockdown"
    path.write_text(text)
    return (home / "absent", path)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("[none] integrity confidentiality\n", "none"),
        ("none [integrity] confidentiality\n", "integrity"),
        ("none integrity [confidentiality]\n", "confidentiality"),
        ("", None),
        ("none integrity", None),
    ],
)
def test_the_level_in_brackets_is_in_effect(
    tmp_path: Path, btf: Path, text: str, level: str | None
) -> None:
    files = lockdown(tmp_path, text)
    assert find_lockdown(files) == level
    assert ("locked down" in find_unsupported(btf, files)) == (level == "confidentiality")


def test_a_kernel_without_lockdown(tmp_path: Path, btf: Path) -> None:
    assert find_lockdown((tmp_path / "absent",)) is None
    assert find_unsupported(btf, (tmp_path / "absent",)) == ""


def test_a_kernel_without_btf(tmp_path: Path) -> None:
    reason = find_unsupported(tmp_path / "vmlinux", (tmp_path / "absent",))
    assert "CONFIG_DEBUG_INFO_BTF" in reason
