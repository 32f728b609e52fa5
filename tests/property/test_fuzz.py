# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Inputs that were searched for by coverage are used, or refused in the documented way."""

from collections.abc import Iterator
from pathlib import Path
import re
import subprocess
import sys
import tempfile

import pytest

from tests.support.hostile.subjects import SUBJECTS

pytestmark = pytest.mark.soak

SECONDS = 300


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory with a short name, because that of a socket may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="sweetpoint-") as name:
        yield Path(name)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_no_input_is_unexpected(subject: str, folder: Path) -> None:
    pytest.importorskip("atheris")
    command = [sys.executable, "-m", "tests.property.fuzz", subject, str(SECONDS), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS)
    output = done.stdout + done.stderr
    failed = {path.name: path.read_bytes() for path in folder.glob("failed-*")}
    assert done.returncode == 0 and not failed, f"{output[-5000:]}\n{failed}"
    runs = re.search(r"number_of_executed_units: ([0-9]+)", output)
    assert runs is not None, output[-5000:]
    print(f"{subject}: {runs[1]} inputs, {len(list((folder / 'corpus').iterdir()))} kept")
    assert int(runs[1]) > 1000
