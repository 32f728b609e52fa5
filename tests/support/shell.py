# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The commands in a text of shell, for tests of documents: words only, nothing is expanded."""

from collections.abc import Iterator
import re
import shlex

__all__ = ("commands",)

_ENDS = frozenset({"|", "&&", "||", ";", "&", "(", ")"})
_REDIRECTIONS = re.compile(r"[<>]+&?|&>+")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*")


def commands(text: str) -> Iterator[list[str]]:
    """Yield each command of *text*, without redirections, ``sudo`` and variables before it."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        redirected = False
        for word in (*lexer, ";"):
            if word in _ENDS:
                if words:
                    yield words
                words, redirected = [], False
            elif _REDIRECTIONS.fullmatch(word):
                redirected = True
                if words and words[-1] in ("1", "2"):
                    words.pop()
            elif redirected:
                redirected = False
            elif words or (word != "sudo" and not _ASSIGNMENT.fullmatch(word)):
                words.append(word)
