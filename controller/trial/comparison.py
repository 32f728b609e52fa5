# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a trial compares, as the page of the agent says it.

The page counts and not the file, because an agent reads a file that was changed only with a reload.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from controller.page.view import mapping, records, text
from controller.trial.measure import Page

__all__ = ("Comparison", "comparison", "configuration", "is_in_force", "others_in_force")

_REPLACE = "replace_profiles"
_MOST_NAME = 63


class Comparison(NamedTuple):
    """What a policy does: the profiles that it ``replaces``, and the other keys ``also``."""

    replaces: Mapping[str, str] = MappingProxyType({})
    also: tuple[str, ...] = ()


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
            sets = each.get("sets")
            keys = [text(key) for key in sets] if isinstance(sets, list) else []
            return Comparison(replaces, tuple(key for key in keys if key != _REPLACE))
    return Comparison()


def _in_force(page: Page) -> list[Mapping[str, object]]:
    return records(mapping(page.get("policies")).get("in_force"))
