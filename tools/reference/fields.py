# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The keys of the configuration and of profiles, from their models."""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
import inspect
import json
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from controller.config.fields import Quantity, sentence
from controller.core.units import (
    parse_bandwidth,
    parse_bytes,
    parse_cpus,
    parse_duration,
    parse_number,
    parse_rate,
    parse_ratio,
)
from tools.reference.markdown import code, table

__all__ = ("fields",)

_UNITS: dict[Callable[[str], float], str] = {
    parse_duration: "duration",
    parse_bytes: "bytes",
    parse_bandwidth: "bandwidth",
    parse_cpus: "CPUs",
    parse_ratio: "ratio",
    parse_number: "number",
    parse_rate: "per second",
}
_BOUNDS = {
    "gt": "above",
    "ge": "at least",
    "lt": "below",
    "le": "at most",
    "min_length": "at least",
    "max_length": "at most",
}


def fields(
    model: type[BaseModel], prefix: str = "", seen: dict[type[BaseModel], str] | None = None
) -> Iterator[str]:
    """Yield a table of the keys of *model*, then those of the sections in it.

    :param seen: the models that have a table, and where; filled.
    """
    seen = {} if seen is None else seen
    if prefix:
        yield f"### {prefix.rstrip('.')}\n"
    if model.__doc__:
        yield f"{' '.join(model.__doc__.replace('``', '`').split())}\n"
    sections: list[tuple[str, type[BaseModel]]] = []
    rows = []
    for name, field in model.model_fields.items():
        key = field.alias or name
        inner, path = _inner(field.annotation, f"{prefix}{key}")
        known = [seen[each] for each in inner if each in seen]
        sections += [(path, each) for each in inner if each not in seen]
        seen.update((each, path) for each in inner if each not in seen)
        kind = _kind(field) + "".join(f" as `{each}`" for each in known)
        rows.append((code(key), sentence(field), code(_default(field)), kind))
    yield from table(("key", "meaning", "default", "value"), rows)
    for path, each in sections:
        yield from fields(each, f"{path}.", seen)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    value = field.default
    if isinstance(value, BaseModel) or value == {}:
        return ""
    if value is None:
        return ""
    return value.value if isinstance(value, Enum) else _plain(value)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _inner(annotation: Any, path: str) -> tuple[list[type[BaseModel]], str]:
    """Return the models in *annotation*, and the path of their keys."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation], path
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _inner(arguments[0], path)
    if origin is list:
        return _inner(arguments[0], f"{path}[]")
    if origin in (dict, Mapping) and len(arguments) == 2:
        return _inner(arguments[1], f"{path}.NAME")
    if origin in (Union, types.UnionType):
        found = [_inner(each, path) for each in arguments]
        models = [model for inner, _ in found for model in inner]
        return models, next((at for inner, at in found if inner), path)
    return [], path


def _kind(field: FieldInfo) -> str:
    words = [] if not field.is_required() else ["required"]
    words += _words(field.annotation, list(field.metadata))
    return ", ".join(dict.fromkeys(words))


def _words(annotation: Any, metadata: list[Any]) -> list[str]:
    found = next((each for each in metadata if isinstance(each, Quantity)), None)
    if found is not None:
        return [f"{_UNITS.get(found.parse, 'text')} from {found.least} to {found.most}"]
    of = "characters" if annotation is str else "entries"
    bounds = [
        f"{words} {value}{f' {of}' if name.endswith('length') else ''}"
        for each in metadata
        for name, words in _BOUNDS.items()
        if (value := getattr(each, name, None)) is not None
    ]
    return _type(annotation) + bounds


def _type(annotation: Any) -> list[str]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _words(arguments[0], list(arguments[1:]))
    if origin is Literal:
        return [" or ".join(code(_plain(each)) for each in arguments)]
    if origin is list:
        return [f"list: {', '.join(_type(arguments[0]))}"]
    if origin in (dict, Mapping):
        return [f"mapping of {_one(arguments[0])} to {_one(arguments[1])}"]
    if origin in (Union, types.UnionType):
        words = [_one(each) for each in arguments if each is not type(None)]
        return [" or ".join(dict.fromkeys(words))]
    if inspect.isclass(annotation):
        if issubclass(annotation, BaseModel):
            return ["section"]
        if issubclass(annotation, Enum):
            return [" or ".join(code(each.value) for each in annotation)]
    names = {bool: "`true` or `false`", str: "text", int: "integer", float: "number"}
    return [names.get(annotation, "text")]


def _one(annotation: Any) -> str:
    return ", ".join(_type(annotation))
