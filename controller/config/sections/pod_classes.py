# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What classes of services have in common: their names, and which pods have them.

``resctrl.classes`` and ``io.classes`` are such classes.
"""

from collections.abc import Iterable
from typing import Literal, Protocol

from pydantic import Field

from controller.config.yaml_document import Document

__all__ = (
    "CLASS_NAME",
    "KoordinatorClass",
    "PodClass",
    "find_claimed_twice",
)

# Name of a class; also valid as the value of a Kubernetes label.
CLASS_NAME = Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,40}[A-Za-z0-9])?$")
KoordinatorClass = Literal["LSE", "LSR", "LS", "SYSTEM"]


class PodClass(Protocol):
    """A class of a section, and the pods that have it besides those of profiles.

    ``koordinator`` are values of Koordinator's label. ``annotation``: a pod may choose the class.
    """

    @property
    def name(self) -> str: ...
    @property
    def koordinator(self) -> frozenset[str]: ...
    @property
    def annotation(self) -> bool: ...


def find_claimed_twice(document: Document, section: str, classes: Iterable[PodClass]) -> list[str]:
    """Return the problems of values of Koordinator's label that two classes of *section* list."""
    problems = []
    owners: dict[str, str] = {}
    for each in classes:
        for value in sorted(each.koordinator):
            if (owner := owners.setdefault(value, each.name)) != each.name:
                loc = (section, "classes", each.name, "koordinator")
                text = f"{value} already belongs to the class {owner!r}"
                problems.append(document.problem(loc, text))
    return problems
