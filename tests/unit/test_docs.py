# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Documents and prose: paths that are named exist, and the subject is a component, not a person."""

from collections.abc import Iterator
import io
from pathlib import Path
import re
import tokenize

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in ROOT.glob("docs/*.md")))
_PATH = re.compile(r"`((?:[a-z_]+/)+[a-z_0-9.]*)`")
_TOPS = ("actuators", "bpf", "controller", "deploy", "docs", "profiles", "tests", "tools")
_PERSONS = re.compile(r"\b(?:who|whoever|nobody|somebody|told)\b", re.IGNORECASE)
# Per 1,000 words, in docstrings, comments and documents.
_MOST_PERSONS = 0.3


@pytest.mark.parametrize("name", DOCUMENTS)
def test_paths_in_documents_exist(name: str) -> None:
    named = set(_PATH.findall((ROOT / name).read_text()))
    rooms = {each.name for each in (ROOT / "controller").iterdir() if each.is_dir()}
    missing = [
        path
        for path in sorted(named)
        for top in (path.split("/")[0],)
        if (top in _TOPS and not (ROOT / path).exists())
        or (top in rooms - set(_TOPS) and not (ROOT / "controller" / path).exists())
    ]
    assert not missing


def prose() -> Iterator[str]:
    """Yield docstrings and comments of the Python sources, and the documents."""
    for name in DOCUMENTS:
        yield (ROOT / name).read_text()
    for package in ("controller", "actuators"):
        for path in (ROOT / package).rglob("*.py"):
            for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
                is_docstring = token.type == tokenize.STRING and token.string.startswith('"""')
                if token.type == tokenize.COMMENT or is_docstring:
                    yield token.string


def test_prose_is_about_components() -> None:
    words = persons = 0
    for text in prose():
        words += len(re.findall(r"[A-Za-z']+", text))
        persons += len(_PERSONS.findall(text))
    assert persons / words * 1000 <= _MOST_PERSONS
