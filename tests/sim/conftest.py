# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A directory for the history of a simulated node, and the command that reads it."""

from pathlib import Path

import pytest

from controller.cli.main import main
from tests.sim.explaining import START, Explain


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def explain(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> Explain:
    """Run the command; return what it prints."""

    def run(name: str, *options: str, code: int = 0) -> str:
        options = options or ("--since", START)
        assert main(["explain", name, "--data-dir", str(data_dir), *options]) == code
        out, err = capsys.readouterr()
        return out if code == 0 else err

    return run
