# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint explain`` on the history of an agent of a test, and waiting for a squeeze."""

import json
from pathlib import Path
from typing import Any

import pytest

from controller.cli.main import main
from tests.kernel.agent import AgentRun, Site
from tests.support.waiting import eventually

__all__ = ("Explain", "squeezed")


class Explain:
    """The command, on the history of the agent of *site*."""

    def __init__(self, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
        self._data_dir, self._capsys = site.home / "data", capsys
        self._files: list[tuple[Path, int, int]] = []
        self._known: dict[tuple[str, ...], str] = {}

    def text(self, name: str, *options: str) -> str:
        """Return what it prints; empty as long as there is no history."""
        # The history is written every ten seconds. The command, which takes a CPU for a moment, is
        # executed again only after that.
        files = [
            (path, path.stat().st_size, path.stat().st_mtime_ns)
            for path in sorted(self._data_dir.rglob("*"))
        ]
        if files != self._files:
            self._files, self._known = files, {}
        words = (name, *options)
        if words not in self._known:
            self._known[words] = self._run(*words)
        return self._known[words]

    def incidents(self, name: str, kind: str) -> list[dict[str, Any]]:
        found = self.text(name, "--json")
        each: list[dict[str, Any]] = json.loads(found)["incidents"] if found else []
        return [incident for incident in each if incident["kind"] == kind]

    def _run(self, *words: str) -> str:
        self._capsys.readouterr()
        code = main(["explain", *words, "--since", "1h", "--data-dir", str(self._data_dir)])
        out, _ = self._capsys.readouterr()
        return out if code == 0 else ""


def squeezed(agent: AgentRun) -> str:
    """Wait until a quota of the agent is applied, and return it.

    The agent may soon let go of it: a squeeze that is in vain is a trial of a few seconds.
    """

    def quota() -> str | None:
        knobs = agent.status()["knobs"]
        applied = [str(knob["applied"]) for knob in knobs if knob["knob"] == "cpu.quota"]
        return next((each for each in applied if not each.startswith("max")), None)

    return eventually("a quota", quota)
