# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Names of cgroups, devices and files in texts that must be UTF-8.

The kernel takes any bytes but ``/``, NUL and line breaks as the name of a cgroup, and the owner of
a delegated cgroup chooses the names below it. Python represents a byte that is not UTF-8 by a lone
surrogate (PEP 383). That is right for opening the file, but no encoder of texts accepts it.
"""

from collections.abc import Iterable
import difflib
import os
import re

__all__ = ("did_you_mean", "printable", "printable_name", "similar", "utf8")

_MOST_COMPARED = 253  # of a name, because the comparison takes quadratic time
_SURROGATE = re.compile("[\ud800-\udfff]")


def printable_name(name: str) -> str:
    r"""Return *name* with each byte that is not UTF-8 as text, such as ``\xff``."""
    return os.fsencode(name).decode(errors="backslashreplace")


def printable(text: str) -> str:
    r"""Return *text* with each character that is not printable as an escape, such as ``\n``."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def did_you_mean(name: str, known: Iterable[str], most: int = 3) -> str:
    """Return a question with at most *most* of the *known* names like *name*; empty without any."""
    close = similar(name, known, most)
    return f"did you mean {', '.join(map(printable, close))}?" if close else ""


def similar(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Return at most *most* of the *known* names that are like *name*, the most similar first."""
    # The quotient is twice the equal characters by all. At the usual 0.6 "servces" would be like
    # "reserve"; but of a short name one character may always be wrong.
    length = min(max(len(name), 3), _MOST_COMPARED)
    cutoff = min(0.75, (length - 1) / length)
    return difflib.get_close_matches(name[:_MOST_COMPARED], sorted(known), n=most, cutoff=cutoff)


def utf8(text: str) -> bytes:
    r"""Encode *text*, whose quoted strings write a backslash twice, as JSON and Prometheus do.

    A lone surrogate becomes the text ``\udcff``, for example, in place of an encoding error.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub(lambda found: rf"\\u{ord(found[0]):04x}", text).encode()
