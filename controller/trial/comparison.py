# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a trial compares, as the page of the agent says it.

The page counts and not the file, because an agent reads a file that was changed only with a reload.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from controller.page.view import mapping, number, records, text
from controller.trial.blocks import Change
from controller.trial.measure import Page

__all__ = (
    "Comparison",
    "candidate",
    "comparison",
    "configuration",
    "is_in_force",
    "others_in_force",
    "setting",
)

_MOST_NAME = 63
_MOST_VALUE = 64
# More than a policy can set.
_MOST_CHANGES = 128


class Comparison(NamedTuple):
    """What a policy does.

    It ``replaces`` profiles and sets other keys ``also``, such as ``law.find_harm=false``.
    ``changes`` are the keys that it gives another value than they have without it.
    """

    replaces: Mapping[str, str] = MappingProxyType({})
    also: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()


def is_in_force(policy: str, page: Page) -> bool:
    """Return whether *policy* is in force by *page*, /statusz."""
    return policy in [each.get("policy") for each in _in_force(page)]


def others_in_force(policy: str, page: Page) -> list[str]:
    """Return the names of the policies that are in force by *page*, without *policy*."""
    return [name for each in _in_force(page) if (name := text(each.get("policy"))) != policy]


def configuration(page: Page) -> tuple[str, str]:
    """Return what changes with the files of the agent and with the profiles of its cluster.

    It is the same whichever policies are in force; empty texts: there is none.
    """
    profiles = mapping(mapping(page.get("cluster")).get("profiles"))
    return text(page.get("config_digest")), text(profiles.get("digest"))


def comparison(policy: str, page: Page) -> Comparison:
    """Return what *policy*, which is in force by *page*, does."""
    for each in _in_force(page):
        if each.get("policy") == policy:
            replaces = {
                text(one, _MOST_NAME): text(to, _MOST_NAME)
                for one, to in mapping(each.get("replaces")).items()
            }
            sets = mapping(each.get("sets")).items()
            also = tuple(setting(text(key, _MOST_NAME), value) for key, value in sets)
            return Comparison(replaces, also, tuple(_changes(each)))
    return Comparison()


def candidate(page: Page) -> tuple[str, float | None] | None:
    """Return digest and end of the candidate in force by *page*; ``None``: there is none."""
    found = mapping(mapping(page.get("policies")).get("candidate"))
    return (text(found.get("digest")), number(found.get("until_s"))) if found else None


def _changes(policy: Mapping[str, object]) -> Iterator[Change]:
    for each in records(policy.get("changes"))[:_MOST_CHANGES]:
        value, without = _shown(each.get("value")), _shown(each.get("without"))
        yield Change(text(each.get("key")), value, without)


def setting(key: str, value: object) -> str:
    """Return a key and its value as ``Comparison.also`` has them."""
    return f"{key}={_shown(value)}"


def _shown(value: object) -> str:
    """Return *value* as the file of the configuration has it, at most 64 characters of it."""
    shown = "not set" if value is None else str(value)
    if isinstance(value, bool):
        shown = shown.lower()
    return "".join(each for each in shown if each.isascii() and each.isprintable())[:_MOST_VALUE]


def _in_force(page: Page) -> list[Mapping[str, object]]:
    return records(mapping(page.get("policies")).get("in_force"))
