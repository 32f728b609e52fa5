# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""JSON that anybody may have written: a value of a wrong type counts as none."""

from collections.abc import Mapping
from typing import Any

__all__ = ("items", "mapping", "shown")


def mapping(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object that *raw* has under *key*, an empty one where that is no object."""
    value = raw.get(key) if isinstance(raw, dict) else None
    return value if isinstance(value, dict) else {}


def items(raw: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return the objects in the list that *raw* has under *key*; what is none is left out."""
    value = raw.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def shown(value: object) -> str:
    """Return *value* for a message: at most 64 characters of text, all of them printable."""
    # Of what is not text only the type: a value may be of any size and depth.
    return ascii(value[:64]) if isinstance(value, str) else f"a {type(value).__name__}"
