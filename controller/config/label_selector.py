# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Kubernetes label selectors: which sets of labels they select.

The rules are those of k8s.io/apimachinery/pkg/apis/meta/v1 LabelSelector. No library: the official
client has the records of a selector and nothing that evaluates one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

__all__ = ("LABEL_KEY", "LABEL_VALUE", "LabelSelector", "Operator", "Requirement", "equal")

# What the API server accepts as the key and the value of a label.
LABEL_KEY = r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"


class Operator(StrEnum):
    """How a requirement compares the value of its key."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class Requirement(NamedTuple):
    """One condition on the label ``key``; ``values`` are for ``IN`` and ``NOT_IN`` only."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether *labels* meet it. A label that is missing is in no set of values."""
        here = labels.get(self.key)
        if self.operator is Operator.IN:
            return here in self.values
        if self.operator is Operator.NOT_IN:
            return here not in self.values
        return (here is not None) is (self.operator is Operator.EXISTS)

    def __str__(self) -> str:
        values = ", ".join(sorted(self.values))
        if self.operator is Operator.IN:
            return f"{self.key}={values}" if len(self.values) == 1 else f"{self.key} in ({values})"
        if self.operator is Operator.NOT_IN:
            return f"{self.key} not in ({values})"
        return self.key if self.operator is Operator.EXISTS else f"no {self.key}"


def equal(labels: Mapping[str, str]) -> Iterable[Requirement]:
    """Return the requirements of ``matchLabels``: each of *labels* with this value."""
    return (Requirement(key, Operator.IN, frozenset({labels[key]})) for key in sorted(labels))


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Selects the sets of labels that meet all ``requirements``; without any, all of them."""

    requirements: tuple[Requirement, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether it selects *labels*."""
        return all(each.holds(labels) for each in self.requirements)

    def __str__(self) -> str:
        return ", ".join(map(str, self.requirements)) or "any labels"
