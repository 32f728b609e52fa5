# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""docs/REFERENCE.md is what the code says, and nothing that the code has is missing."""

import ast
from collections.abc import Iterator
from pathlib import Path
import re

import pytest

from controller.cli.main import COMMANDS
from controller.config.load import json_schemas
from controller.core.model import IndicatorName, Knob
from controller.kube.reasons import Reason
from tests.support.sentences import problems
from tools.reference.__main__ import OUTPUT, text

ROOT = Path(__file__).parents[3]
# Of a family: its name, with or without the common prefix.
_NAME = re.compile(r"(?:sweetpoint_)?([a-z][a-z0-9]*(?:_[a-z0-9]+)*)")
_LOOKS_LIKE_HELP = re.compile(r"[A-Z1].{12,}[.]")


@pytest.fixture(scope="module")
def reference() -> str:
    return text()


def test_the_committed_reference_is_up_to_date(reference: str) -> None:
    assert OUTPUT.read_text(encoding="utf-8") == reference, "run: make reference"


def strings_before_help(path: Path) -> Iterator[str]:
    """Yield the strings that stand before a text of help in a tuple or a call."""
    for node in ast.walk(ast.parse(path.read_text())):
        parts = node.elts if isinstance(node, ast.Tuple) else getattr(node, "args", ())
        if not isinstance(parts, list):
            continue
        values = [each.value if isinstance(each, ast.Constant) else None for each in parts[:2]]
        if all(isinstance(each, str) for each in values) and len(values) == 2:
            name, meaning = values
            if _NAME.fullmatch(str(name)) and _LOOKS_LIKE_HELP.fullmatch(str(meaning)):
                yield str(name).removeprefix("sweetpoint_")


def test_every_metric_of_the_sources_is_listed(reference: str) -> None:
    listed = re.findall(r"^\| `sweetpoint_(\w+)`", reference, re.MULTILINE)
    sources = sorted((ROOT / "controller/telemetry/metrics").glob("*.py"))
    named = {each for path in sources for each in strings_before_help(path)}
    assert len(named) > 80
    missing = {name for name in named if not any(name in each for each in listed)}
    assert not missing


def test_every_key_of_the_models_is_listed(reference: str) -> None:
    keys = set(re.findall(r"^\| `([^`]+)` \|", reference, re.MULTILINE))
    for schema in json_schemas().values():
        parts = [schema, *schema["$defs"].values()]
        for part in parts:
            known = part.get("properties", {})
            in_force = {key for key, each in known.items() if not each.get("deprecated")}
            assert in_force <= keys, part.get("title")


def test_commands_indicators_knobs_and_events_are_listed(reference: str) -> None:
    for name in COMMANDS:
        assert f"\n### sweetpoint {name}\n" in reference
    for each in (*IndicatorName, *Knob, *Reason):
        assert f"\n| `{each}` |" in reference
        assert not problems(each.meaning), each


def test_each_reason_of_an_event_is_used() -> None:
    """The type of ``Events.emit`` admits no other reason."""
    rooms = ("controller/kube", "controller/rollout")
    sources = "".join(path.read_text() for room in rooms for path in (ROOT / room).glob("*.py"))
    assert not [each for each in Reason if f"Reason.{each.name}" not in sources]


def test_each_metric_has_one_short_sentence(reference: str) -> None:
    found = dict(re.findall(r"^\| `(sweetpoint_\w+)` .* \| ([^|]*) \|$", reference, re.MULTILINE))
    assert len(found) > 120
    wrong = {name: problems(text) for name, text in found.items()}
    assert not {name: why for name, why in wrong.items() if why}
