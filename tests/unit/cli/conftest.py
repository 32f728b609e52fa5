# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the tests of the command line from the agents that run on this host."""

from pathlib import Path

import pytest

from controller.host import running_agents


@pytest.fixture(autouse=True)
def processes(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory in place of /proc, where the commands look for agents."""
    empty = tmp_path_factory.mktemp("proc")
    monkeypatch.setattr(running_agents, "PROC", empty)
    return empty
