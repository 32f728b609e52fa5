# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Reading of JSON from untrusted sources: a value of a wrong type counts as absent."""

from collections.abc import Mapping
from typing import Any

__all__ = ("items", "mapping", "shown")


def mapping(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object that *raw* has under *key*; empty if the value is not an object."""
    value = raw.get(key) if isinstance(raw, dict) else None
    return value if isinstance(value, dict) else {}


def items(raw: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return the objects in the list that *raw* has under *key*; other items are left out."""
    value = raw.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def shown(value: object) -> str:
    """Return *value* for a message: at most 64 characters of text, all of them printable."""
    # Other values are not printed but only their type: they may be of any size and depth.
    return ascii(value[:64]) if isinstance(value, str) else f"a {type(value).__name__}"
