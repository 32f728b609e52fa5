# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Parser of Koordinator's ``slo-controller-config``: the ConfigMap as a flat set of fields.

The format is that of apis/configuration/slo_controller_config.go in koordinator-sh/koordinator:
each key of the ConfigMap holds JSON, most keys with one strategy for the cluster and others for
some of its nodes. Of those the first one counts whose selector a node's labels match, for what it
says; the rest is that of the cluster (pkg/slo-controller/nodeslo/resource_strategy.go).
"""

from collections.abc import Iterator, Mapping
import json
from typing import Any

from controller.config.label_selector import LabelSelector, Operator, Requirement, equal
from controller.config.yaml_document import ConfigError, Document

__all__ = ("Field", "Fields", "read", "short_json")

# Path of a field: the key of the ConfigMap, then keys of JSON.
Field = tuple[str, ...]

_INLINE = frozenset({"colocation-config", "host-application-config"})
# Where a section has what is for some nodes only, and the parts of such an entry that are no field.
_FOR_NODES = ("nodeStrategies", "nodeConfigs")
_ABOUT = ("name", "nodeSelector")
_MAX_LENGTH = 120


class Fields:
    """The fields that have not been converted; ``take`` removes the ones it returns.

    Fields that remain at the end are reported, so that none is lost silently. ``chosen`` has the
    names of the strategies for a node that count, by key of the ConfigMap.
    """

    def __init__(self, values: Mapping[Field, object], chosen: Mapping[str, str]) -> None:
        self._values = dict(values)
        self.chosen = chosen

    def take(self, *field: str) -> Any:
        """Return the value of *field* and remove it; ``None`` if it is not there."""
        return self._values.pop(field, None)

    def take_group(self, *field: str) -> dict[str, Any]:
        """Return the fields directly below *field* by the last part of their path; remove them."""
        group = [each for each in self._values if each[:-1] == field]
        return {each[-1]: self._values.pop(each) for each in group}

    @property
    def remaining(self) -> Iterator[tuple[Field, object]]:
        """The fields that were not taken."""
        yield from self._values.items()


def read(document: Document, labels: Mapping[str, str] | None) -> Fields:
    """Return the fields of the ConfigMap in *document* for a node with *labels*.

    ``None``: for no node in particular. Then what is for some nodes is a field.

    :raises ConfigError: the document is not a ConfigMap, or the value of a key is not a mapping
        in JSON, as Koordinator requires.
    """
    top = document.data
    data = top.get("data") if isinstance(top, dict) else None
    if not isinstance(data, dict):
        raise ConfigError([document.problem((), "is not a ConfigMap: there is no mapping 'data'")])
    values: dict[Field, object] = {}
    chosen: dict[str, str] = {}
    problems: list[str] = []
    for key, text in data.items():
        try:
            section = json.loads(text) if isinstance(text, str) else text
            values.update(_section(str(key), section, labels, chosen))
        except (ValueError, RecursionError):
            problems.append(document.problem(("data", str(key)), "must be JSON with a mapping"))
    if problems:
        raise ConfigError(problems)
    return Fields(values, chosen)


def _section(
    key: str, value: object, labels: Mapping[str, str] | None, chosen: dict[str, str]
) -> Iterator[tuple[Field, object]]:
    if not isinstance(value, dict):
        raise ValueError(key)  # noqa: TRY004 - like the errors of json.loads
    cluster = value if key in _INLINE else value.get("clusterStrategy") or {}
    if not isinstance(cluster, dict):
        raise ValueError(key)  # noqa: TRY004
    of_nodes = dict.fromkeys(_FOR_NODES) if labels is not None else {}
    yield from ((at, part) for at, part in _flat((key,), cluster) if at[1] not in of_nodes)
    if key not in _INLINE:
        for name, rest in value.items():
            if name != "clusterStrategy" and name not in of_nodes:
                yield (key, name), rest
    for name in of_nodes:
        for each in _entries(value.get(name)):
            if _matches(each.get("nodeSelector"), labels or {}):
                chosen[key] = str(each.get("name", "without a name"))
                own = {part: each[part] for part in each if part not in _ABOUT}
                yield from _flat((key,), own)
                break


def _entries(value: object) -> Iterator[Mapping[str, Any]]:
    if not isinstance(value, list | None):
        raise ValueError(value)  # noqa: TRY004 - like the errors of json.loads
    for each in value or ():
        if not isinstance(each, dict):
            raise ValueError(each)  # noqa: TRY004
        yield each


def _matches(selector: object, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector selects *labels*: none selects nothing, and an empty one all."""
    if not isinstance(selector, dict):
        return False
    wanted = selector.get("matchLabels") or {}
    rules = selector.get("matchExpressions") or []
    try:
        found = LabelSelector((*equal(wanted), *map(_requirement, rules)))
    except (AttributeError, KeyError, TypeError, ValueError):  # not such a selector
        return False
    return found.matches(labels)


def _requirement(rule: Mapping[str, Any]) -> Requirement:
    values = frozenset(rule.get("values") or [])
    return Requirement(str(rule["key"]), Operator(rule["operator"]), values)


def _flat(at: Field, value: Mapping[str, object]) -> Iterator[tuple[Field, object]]:
    for key, part in value.items():
        if isinstance(part, dict):
            yield from _flat((*at, key), part)
        else:
            yield (*at, key), part


def short_json(value: object) -> str:
    """Return *value* as JSON for a comment: one line of at most 120 ASCII characters."""
    text = json.dumps(value)
    return text if len(text) <= _MAX_LENGTH else text[: _MAX_LENGTH - 3] + "..."
