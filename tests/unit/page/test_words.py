# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What people read has plain words for the states of a channel, not those of programs."""

from collections.abc import Mapping
from datetime import UTC
import io
import json
from pathlib import Path
import re
from typing import Any

import pytest
from rich.console import Console

from controller.agent.history.incidents import Effect, Suffering
from controller.cli.explain_text import _paragraph
from controller.cli.top import plain
from controller.cli.top_screen import draw
from controller.core.decision import ChannelState
from controller.core.model import Channel, Mode
from controller.page.node import node_document
from controller.page.view import Tracker
from controller.page.words import state_words
from tests.support.reports import LOOP
from tests.unit.cli.published import page, published

ROOT = Path(__file__).parents[3]
INTERNAL = {ChannelState.NOT_BE, ChannelState.SELF, ChannelState.STEAL, ChannelState.HOLD}


@pytest.fixture(scope="module")
def status() -> Mapping[str, Any]:
    return page(published())


def test_each_internal_name_has_words_that_the_docs_define() -> None:
    text = (ROOT / "docs" / "OPERATIONS.md").read_text()
    for state in (*ChannelState, "other"):
        assert f"\n| {state_words(state)} | `{state}` | " in text
    assert all(state_words(each) != each for each in INTERNAL)


@pytest.mark.parametrize("state", sorted(INTERNAL))
def test_no_view_shows_an_internal_name(state: ChannelState, status: dict[str, Any]) -> None:
    (demand,) = status["plan"]["demands"]
    demand["state"] = str(state)
    view = Tracker().update(status)
    shown = "\n".join(plain(view))
    assert f"channel cpu {state_words(state)} " in shown
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(draw(view, detail=False, height=40, hint=""))
    assert state_words(state) in console.export_text()
    document = [*node_document(view, status, None, UTC, "host", 2).sections]
    assert f"'{state_words(state)}'" in str(document) and f"'{state}'" not in str(document)
    suffering = Suffering(
        began_ns=0,
        mode=Mode.ENFORCE,
        channel=Channel.CPU,
        loop=LOOP,
        states_ns={state: 10**9},
        effect=Effect(),
    )
    (row,) = (line for line in _paragraph(suffering) if line.startswith("    state "))
    assert row.split(maxsplit=1)[1].startswith(f"{state_words(state)} for 1s: ")


def test_the_dashboard_and_the_docs_use_the_words() -> None:
    panels = json.dumps(json.loads((ROOT / "deploy/dashboards/sweetpoint.json").read_text()))
    assert '"text": "other cause"' in panels and '"text": "not-be"' not in panels
    # In docs only as the value of a label or of the code, in the two places that define it.
    found = {
        each.name: len(re.findall("not-be", each.read_text()))
        for each in (*(ROOT / "docs").glob("*.md"), ROOT / "README.md")
    }
    assert {name: count for name, count in found.items() if count} == {
        "CONTROL.md": 1,
        "OPERATIONS.md": 1,
    }
