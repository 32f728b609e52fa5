# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Mutations of valid input, the same in every run: bytes, lines and values that are changed."""

from collections.abc import Iterator
import copy
import math
from random import Random
from typing import Any

__all__ = ("mutated_bytes", "mutated_tree")

_ODD_TEXTS = (
    *("", " ", "~", ".", "..", "/", "/*", "../../etc/passwd", "off", "auto", "null", "<auto>"),
    *("[key]", "a\0b", "a\nb: c", "\x1b[31m", "\u202egnp.exe", "\ud800", "\udcff", "\u0130\u0663"),
    *("-1", "0", "1e999", "nan", "inf", "1" * 19, "9" * 5000, "1_000", "0x10", "10ms", "5%", "2/s"),
    *("64MiB", "10mcpu", "5kbit", "x" * 300, "*a", "&a b", "!!int 3", "{", "- ", "a: b", "%"),
)
_ODD_NUMBERS = (
    -1,
    0,
    1,
    2**31,
    2**63,
    10**30,
    -(2**63),
    0.0,
    -0.5,
    1e300,
    1e-300,
    math.inf,
    math.nan,
)
_PIECES = (
    *(b"\0", b"\xff", b"\xc2", b"\xef\xbb\xbf", b"\r", b"\t", b"\n", b": ", b"- ", b"? ", b"---\n"),
    *(b"{", b"}", b"[", b"]", b"'", b'"', b"&a ", b"*a", b"!!x ", b"!%1b%c2%85 ", b"#", b"|", b">"),
    *(b"<<: ", b"\\ud800", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\xc2\x85", b"\x1b[31m", b"1e999"),
)


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def _odd_values() -> Iterator[Any]:
    yield from (None, True, False, [], {}, [[]], [None], {"": None}, {"a": {"b": []}})
    yield from _ODD_TEXTS
    yield from _ODD_NUMBERS
    yield _nested(20)
    yield _nested(150)
    yield [0] * 300
    yield {f"key {number}": number for number in range(300)}


_VALUES = tuple(_odd_values())


def mutated_bytes(random: Random, raw: bytes) -> bytes:
    """Return *raw* with one to four changes of bytes, pieces and lines."""
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(raw) + 1)
        end = min(len(raw), at + random.choice((1, 2, 8, 64)))
        lines = raw.splitlines(keepends=True) or [b""]
        line = random.randrange(len(lines))
        match random.randrange(9):
            case 0:
                raw = raw[:at] + bytes([random.randrange(256)]) + raw[at + 1 :]
            case 1:
                raw = raw[:at] + random.choice(_PIECES) + raw[at:]
            case 2:
                raw = raw[:at] + raw[end:]
            case 3:
                raw = raw[:at] + raw[at:end] * 3 + raw[end:]
            case 4:
                raw = raw[:at]
            case 5:
                raw = b"".join(lines[:line] + lines[line + 1 :])
            case 6:
                lines[line] *= 2
                raw = b"".join(lines)
            case 7:
                lines[line] = b" " * random.choice((1, 2, 4)) + lines[line]
                raw = b"".join(lines)
            case _:
                text = random.choice(_ODD_TEXTS).encode("utf-8", "surrogatepass")
                raw = raw[:at] + text + raw[end:]
    return raw


def mutated_tree(random: Random, tree: Any) -> Any:
    """Return a copy of *tree* with one to three values or keys replaced, removed or moved."""
    tree = copy.deepcopy(tree)
    for _ in range(random.choice((1, 1, 2, 3))):
        places = list(_places(tree))
        if not places:
            return copy.deepcopy(random.choice(_VALUES))
        parent, key = random.choice(places)
        match random.randrange(8):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, dict):
                parent[random.choice(_ODD_TEXTS)] = parent.pop(key)
            case 2:
                other, other_key = random.choice(places)
                parent[key] = copy.deepcopy(other[other_key])
            case 3:
                parent[key] = [parent[key]]
            case 4 if isinstance(parent[key], str):
                text = mutated_bytes(random, parent[key].encode("utf-8", "surrogatepass"))
                parent[key] = text.decode("utf-8", "replace")
            case _:
                parent[key] = copy.deepcopy(random.choice(_VALUES))
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    stack = [tree]
    while stack:
        found = stack.pop()
        if isinstance(found, dict | list):
            for key in found if isinstance(found, dict) else range(len(found)):
                yield found, key
                stack.append(found[key])
