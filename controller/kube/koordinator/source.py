# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Parser of Koordinator's ``slo-controller-config``: the ConfigMap as a flat set of fields.

The format is that of apis/configuration/slo_controller_config.go in koordinator-sh/koordinator:
each key of the ConfigMap holds JSON, most keys with one strategy for the cluster and others for
some of its nodes.
"""

from collections.abc import Iterator, Mapping
import json
from typing import Any

from controller.config.yaml_document import ConfigError, Document

__all__ = ("Field", "Fields", "read", "short_json")

# Path of a field: the key of the ConfigMap, then keys of JSON.
Field = tuple[str, ...]

_INLINE = frozenset({"colocation-config", "host-application-config"})
_MAX_LENGTH = 120


class Fields:
    """The fields that have not been converted; ``take`` removes the ones it returns.

    Fields that remain at the end are reported, so that none is lost silently.
    """

    def __init__(self, values: Mapping[Field, object]) -> None:
        self._values = dict(values)

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


def read(document: Document) -> Fields:
    """Return the fields of the ConfigMap in *document*.

    :raises ConfigError: the document is not a ConfigMap, or the value of a key is not a mapping
        in JSON, as Koordinator requires.
    """
    top = document.data
    data = top.get("data") if isinstance(top, dict) else None
    if not isinstance(data, dict):
        raise ConfigError([document.problem((), "is not a ConfigMap: there is no mapping 'data'")])
    values: dict[Field, object] = {}
    problems: list[str] = []
    for key, text in data.items():
        try:
            values.update(_section(str(key), json.loads(text) if isinstance(text, str) else text))
        except (ValueError, RecursionError):
            problems.append(document.problem(("data", str(key)), "must be JSON with a mapping"))
    if problems:
        raise ConfigError(problems)
    return Fields(values)


def _section(key: str, value: object) -> Iterator[tuple[Field, object]]:
    if not isinstance(value, dict):
        raise ValueError(key)  # noqa: TRY004 - like the errors of json.loads
    cluster = value if key in _INLINE else value.get("clusterStrategy") or {}
    if not isinstance(cluster, dict):
        raise ValueError(key)  # noqa: TRY004
    yield from _flat((key,), cluster)
    if key not in _INLINE:
        for name, rest in value.items():
            if name != "clusterStrategy":
                yield (key, name), rest


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
