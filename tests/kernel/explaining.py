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


def squeezed(agent: AgentRun, *others: str) -> str:
    """Wait until a quota of the agent is applied and stays; return it.

    *others*: quotas of another program, as they begin.
    """

    def quota() -> str | None:
        for knob in agent.status()["knobs"]:
            applied = str(knob["applied"])
            if knob["knob"] == "cpu.quota" and not applied.startswith(("max", *others)):
                return applied
        return None

    def stays() -> str | None:
        before = eventually("a quota", quota)
        agent.watch(2)
        return before if quota() == before else None

    return eventually("a quota that stays", stays)
