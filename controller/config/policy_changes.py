# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a policy in force changes: each key with its value, and the value without the policy.

Values are those of the file; where it has none, the default counts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from controller.config.fields import model_in
from controller.config.models import ConfigModel
from controller.config.policies import Change, PoliciesInForce, PolicyInForce, apply
from controller.config.yaml_document import Document

__all__ = ("find_changes", "settings_of")

_REPLACE = "replace_profiles"

_Key = tuple[str, ...]


def settings_of(sets: Mapping[str, Any]) -> Mapping[str, object]:
    """Return the single keys of *sets*, such as ``law.find_harm``, with their values."""
    return {".".join(key): value for key, value in _leaves(sets)}


def find_changes(document: Document, found: PoliciesInForce) -> Mapping[str, tuple[Change, ...]]:
    """Return by name what each policy of *found* changes; a later one may undo that.

    :param document: the file with all policies, which are valid.
    """
    data = apply(document, found).data
    return {each.name: tuple(_changes(document, found, each, data)) for each in found.entries}


def _changes(
    document: Document, found: PoliciesInForce, policy: PolicyInForce, data: object
) -> Iterator[Change]:
    others = tuple(each for each in found.entries if each.name != policy.name)
    without = apply(document, replace(found, entries=others)).data
    for key, _ in _leaves(policy.sets):
        now, then = _value(data, key), _value(without, key)
        if now != then:
            yield Change(".".join(key), now, then)


def _leaves(sets: Mapping[str, Any], at: _Key = ()) -> Iterator[tuple[_Key, object]]:
    for name, value in sets.items():
        key = (*at, str(name))
        if isinstance(value, dict):
            yield from _leaves(value, key)
        elif value is not None:
            yield key, value


def _value(data: object, key: _Key) -> object:
    found: Any = data
    for name in key:
        found = found.get(name) if isinstance(found, dict) else None
    if found is None and key[0] == _REPLACE:
        return key[1]  # it is not replaced
    return _default(key) if found is None else found


def _default(key: _Key) -> object:
    model: Any = ConfigModel
    value: object = None
    for name in key:
        fields = {} if model is None else model.model_fields
        if name not in fields:
            return None
        value, model = fields[name].default, model_in(fields[name].annotation)
    return str(value) if isinstance(value, Enum) else value
