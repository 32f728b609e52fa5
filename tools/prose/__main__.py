# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Print counts of the documents as a Markdown table; ``--long 30 FILE`` prints long sentences."""

import argparse
from pathlib import Path

from tools.prose import PATTERNS, Prose, documents, long_sentences, measure


def row(name: str, prose: Prose) -> str:
    """Return one line of the table."""
    shares = (f"{100 * prose.share(each):.1f}" for each in (prose.over_30, prose.over_25))
    cells = (name, str(prose.sentences), *shares, *map(str, prose.found.values()))
    return f"| {' | '.join(cells)} |"


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tools.prose", description=__doc__)
    options.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="default: all documents"
    )
    options.add_argument("--long", type=int, metavar="WORDS", help="print longer sentences")
    given = options.parse_args()
    files = {str(each): each for each in given.files} or documents()
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    if given.long is not None:
        for name, text in texts.items():
            for each in long_sentences(text, given.long):
                print(f"{name}: {each}")
        return
    print(f"| document | sentences | over 30 words, % | over 25, % | {' | '.join(PATTERNS)} |")
    print("|---" * (4 + len(PATTERNS)) + "|")
    for name, text in texts.items():
        print(row(name, measure(text)))


if __name__ == "__main__":
    main()
