# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The form of the sentences that say what a key, a metric, an Event or a knob is."""

import re

__all__ = ("MOST_WORDS", "problems")

MOST_WORDS = 24


def problems(text: str) -> list[str]:
    """Return why *text* is not one short sentence; empty if it is one."""
    found = {
        "is empty": not text,
        "does not begin with a capital or a digit": not re.match(r"[A-Z0-9]|[a-z]+[._]", text),
        "does not end with a full stop": not text.endswith("."),
        "has a second sentence": bool(re.search(r"[.!?] +[A-Z]", text)),
        "has a line break": "\n" in text,
        f"has more than {MOST_WORDS} words": len(text.split()) > MOST_WORDS,
    }
    return [what for what, holds in found.items() if holds]
