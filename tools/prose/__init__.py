# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Counts of long sentences and of unclear phrases in the documents: ``python -m tools.prose``."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
import re

__all__ = ("PATTERNS", "Prose", "documents", "long_sentences", "measure", "sentences")

ROOT = Path(__file__).parents[2]
# Phrases that readers of other languages stumble over.
PATTERNS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(pattern, re.IGNORECASE)
    for name, pattern in {
        "what is": r"\bwhat (?:is|was|are|were|it|they)\b",
        "that of": r"\b(?:that|those) of\b",
        "own": r"\bof (?:its|their|his|the [a-z]+'s|an? [a-z]+'s) own\b",
        "from on": r"\bfrom (?:[\w%.-]+ ){1,4}on\b(?! (?:the|an?|this|v2)\b)",
        ", else": r", else\b",
        "beside": r"\bbeside\b",
        "ceded": r"\bceded\b",
        "latched": r"\blatched\b",
        "in vain": r"\bin vain\b",
        "brings": r"\b(?:brings?|brought)\b",
    }.items()
}
# A cell of a table with fewer words is a name or a figure, not a sentence.
_WORDS_OF_A_CELL = 8
_FENCE = re.compile("```")
_TABLE = re.compile(r"^\s*\|")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.) +")
_HEADING = re.compile(r"^#{1,6} ")
_SKIPPED = re.compile(r"^(?:<!--|!\[)")
_END = re.compile(r"(?<=[.!?])[)\"]?\**\s+(?=\S)")
_WORD = re.compile(r"\S*\w\S*")


@dataclass(frozen=True, slots=True)
class Prose:
    """Counts of one document."""

    sentences: int
    over_25: int
    over_30: int
    found: Mapping[str, int]

    def share(self, count: int) -> float:
        """Return *count* as a share of all sentences, 0 to 1."""
        return count / self.sentences if self.sentences else 0.0


def documents() -> dict[str, Path]:
    """Return the documents of the repository by name."""
    names = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/chart/README.md"]
    names += sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
    return {name: ROOT / name for name in names}


def measure(text: str) -> Prose:
    """Count sentences and phrases of the Markdown *text*."""
    lengths = [_length(each) for each in sentences(text)]
    prose = " ".join(_blocks(text, cells=1))
    return Prose(
        sentences=len(lengths),
        over_25=sum(each > 25 for each in lengths),
        over_30=sum(each > 30 for each in lengths),
        found={name: len(pattern.findall(prose)) for name, pattern in PATTERNS.items()},
    )


def long_sentences(text: str, words: int) -> list[str]:
    """Return the sentences of *text* with more than *words* words."""
    return [each for each in sentences(text) if _length(each) > words]


def sentences(text: str) -> Iterator[str]:
    """Yield sentences of paragraphs, items and long cells; a piece of code counts as one word."""
    for block in _blocks(text, cells=_WORDS_OF_A_CELL):
        yield from (each for each in _END.split(block) if _length(each))


def _length(sentence: str) -> int:
    return len(_WORD.findall(sentence))


def _blocks(text: str, cells: int) -> Iterator[str]:
    """Yield paragraphs, items, and cells with at least *cells* words, each on one line."""
    block: list[str] = []
    in_fence = is_indented_code = False
    for line in [*text.splitlines(), ""]:
        if _FENCE.match(line):
            in_fence = not in_fence
        elif not in_fence:
            is_indented_code = line.startswith("    ") and not block
        is_prose = not (in_fence or is_indented_code or _ends_a_block(line))
        if block and (not is_prose or _ITEM.match(line)):
            yield _plain(" ".join(block))
            block = []
        if is_prose:
            block.append(_ITEM.sub("", line).strip())
        elif _TABLE.match(line) and not in_fence:
            row = (_plain(each).strip() for each in line.strip().strip("|").split(" | "))
            yield from (each for each in row if _length(each) >= cells)


def _ends_a_block(line: str) -> bool:
    return not line.strip() or any(
        each.match(line) for each in (_TABLE, _HEADING, _SKIPPED, _FENCE)
    )


def _plain(text: str) -> str:
    """Return *text* with each piece of code as one word, and links as their texts."""
    text = re.sub(r"`[^`]*`", "code", text)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
