# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Where a start finds its state directory, also when the configuration cannot be read any more."""

import os
from pathlib import Path

import pytest

from controller.cli import run
from controller.host.kept_config import KeptConfig, keep_config


def found(config: Path) -> tuple[int, str]:
    """Return the exit code and the state directory that a start with *config* finds."""
    reader, writer = os.pipe()
    with os.fdopen(reader) as answer:
        code = run._send_state_dir(config, writer)
        os.close(writer)
        return code, answer.read()


def test_a_file_that_is_none_any_more_leads_to_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("controller.config.state_dir.DEFAULT_STATE_DIR", str(tmp_path))
    config = tmp_path / "config.yaml"
    config.write_text("state_dir: /run/other\n")
    assert found(config) == (0, "/run/other")
    config.write_text("{[")
    assert found(config) == (2, "")
    assert "not YAML" in capsys.readouterr().err
    # An agent with this file died.
    keep_config(tmp_path, config, KeptConfig({}, 1))
    assert found(config) == (0, str(tmp_path))
    config.unlink()
    assert found(config) == (0, str(tmp_path))
    # That of another file is no answer.
    assert found(tmp_path / "typo.yaml") == (2, "")
    (tmp_path / "config.json").write_text("{")
    assert found(config) == (2, "")
