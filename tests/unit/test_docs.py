# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Documents and prose: paths that are named exist, and the subject is a component, not a person."""

from collections.abc import Iterator
import io
from pathlib import Path
import re
import shlex
import tokenize

import pytest

from controller.cli.main import parser
from tests.support import shell
from tools.prose import documents, long_sentences, measure

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in ROOT.glob("docs/*.md")))
_PATH = re.compile(r"`((?:[a-z_]+/)+[a-z_0-9.]*)`")
_TOPS = ("actuators", "bpf", "controller", "deploy", "docs", "profiles", "tests", "tools")
_PERSONS = re.compile(r"\b(?:who|whoever|nobody|somebody|told)\b", re.IGNORECASE)
# Of the sentences of a page.
_MOST_LONG, _LONG_WORDS = 0.05, 30
_GENERATED = ("docs/REFERENCE.md", "docs/BENCHMARKS.md")
_UNCLEAR = ("from on", ", else", "beside", "ceded", "latched", "in vain")
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


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_in_documents_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text()
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
        path = (ROOT / name).parent / target if target else ROOT / name
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            known = {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
            assert anchor in known, f"{target}#{anchor}"


def commands() -> list[tuple[str, str]]:
    """Return (document, command) of all calls of sweetpoint in shell blocks and as code."""
    found = []
    for name in (*DOCUMENTS, "deploy/chart/README.md"):
        text = (ROOT / name).read_text()
        blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        texts = [*blocks, *re.findall(r"^\$ (.*?)(?: 2>.*)?$", text, re.MULTILINE)]
        texts += re.findall(
            r"`((?:sudo )?(?:\.venv/bin/)?sweetpoint [^`]+)`", text.replace("\n", " ")
        )
        found += [
            (name, shlex.join(words[1:]))
            for each in texts
            for words in shell.commands(each)
            if words[0].rpartition("/")[2] == "sweetpoint"
        ]
    return sorted(set(found))


@pytest.mark.parametrize(("name", "command"), commands())
def test_commands_in_documents_have_options_that_exist(
    name: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["5" if word in ("S", "SECONDS") else word for word in shlex.split(command)]
    if words == ["COMMAND"] or "..." in words:
        return
    try:
        parser().parse_args(words)
    except SystemExit as end:
        if end.code == 0:
            return  # --version
        error = capsys.readouterr().err
        # In a sentence, a command may stand without what it needs.
        assert re.search("arguments are required|expected one argument", error), error


def test_commands_are_found_in_documents() -> None:
    found = commands()
    assert ("docs/OPERATIONS.md", "top --once --service nginx") in found
    assert ("README.md", "advise") in found


# What reads or writes what belongs to root.
ROOTS = "run|doctor|demo|init|check|status|top|pause|resume|release|explain|advise|learn"
ROOT_SHELL = "in a root shell (`sudo -i`)"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_of_root_are_typed_as_root(name: str) -> None:
    """With sudo, or where the page says that all of its commands are root's."""
    text = (ROOT / name).read_text()
    if ROOT_SHELL in " ".join(text.split()):
        return
    blocks = re.findall(r"^```(?:sh|console)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    rows = re.findall(r"^\| .*\?.* \| `([^`]+)`", text, re.MULTILINE)  # answers to questions
    for line in "\n".join((*blocks, *rows)).splitlines():
        call = rf"(?:\$ )?(?:(?:\.venv/bin/)?sweetpoint (?:{ROOTS})\b(?!.*--simulate)|make demo)"
        remote = "--url" in line or "--node" in line
        assert remote or not re.match(call, line), f"{name}: {line}"


def prose() -> Iterator[str]:
    """Yield docstrings and comments of the Python sources, and the documents."""
    for name in DOCUMENTS:
        # Code has names like the scenario `who-wait`, which are about no person.
        yield re.sub(r"`[^`]*`", "", (ROOT / name).read_text())
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


@pytest.mark.parametrize("name", sorted(set(documents()) - set(_GENERATED)))
def test_pages_are_written_in_short_sentences(name: str) -> None:
    text = documents()[name].read_text()
    counts = measure(text)
    assert counts.share(counts.over_30) <= _MOST_LONG, long_sentences(text, _LONG_WORDS)
    assert {phrase: counts.found[phrase] for phrase in _UNCLEAR} == dict.fromkeys(_UNCLEAR, 0)
