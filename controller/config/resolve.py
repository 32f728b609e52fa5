# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A configuration in the form of its file, with the defaults of all fields filled in.

The defaults of the models have the form of the file, so that no quantity is converted back: what
the file says stays as it was written, and what it omits is the text in the model.
"""

from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from controller.config.fields import check
from controller.config.load import Config, load
from controller.config.models import ConfigModel
from controller.config.workload_rules import DEFAULT_PROFILE
from controller.config.yaml_document import read_document

__all__ = ("defaults", "resolve")


def resolve(
    path: Path, labels: Mapping[str, str] | None = None, now_s: float | None = None
) -> tuple[Config, dict[str, Any]]:
    """Return the checked configuration *path* and its data with all defaults.

    The configuration is that of a node with *labels* (default: those in the file) at *now_s*, see
    ``load``. The data is that of the file, whichever policies are in force.

    Loading the data gives the same configuration, from any directory: paths of profile files are
    absolute. A field that stays without a value is left out.

    :raises ConfigError: a file is invalid.
    :raises OSError: see ``read_document``.
    """
    config = load(path, labels=labels, now_s=now_s, anywhere=labels is not None)
    document = read_document(path)
    check(document, ConfigModel)  # the file may have changed since it was loaded
    data: dict[str, Any] = _fill(ConfigModel, document.data)
    folder = path.parent.absolute()
    data["profiles"] = [str(folder / name) for name in data["profiles"]]
    for entry, rule in zip(data["workloads"], config.workloads, strict=False):
        entry |= {"service": rule.service}
        if rule.profile:  # without what replace_profiles changes
            entry.setdefault("profile", DEFAULT_PROFILE)
    return config, data


def defaults(model: type[BaseModel], data: dict[str, object]) -> dict[str, Any]:
    """Return *data*, which *model* accepts, with all defaults of the model."""
    return _fill_model(model, data)


def _fill(annotation: Any, value: object) -> Any:
    """Return *value*, which *annotation* accepts, with the defaults of the models in it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _fill_model(annotation, value) if isinstance(value, dict) else value
    if origin is Annotated:
        return _fill(arguments[0], value)
    if origin in (Union, UnionType):
        for each in arguments:
            value = _fill(each, value)
    elif origin is list and isinstance(value, list):
        return [_fill(arguments[0], each) for each in value]
    elif origin is dict and isinstance(value, dict):
        return {key: _fill(arguments[1], each) for key, each in value.items()}
    return str(value) if isinstance(value, str) else value  # the text of an enumeration's member


def _fill_model(model: type[BaseModel], value: dict[str, object]) -> dict[str, Any]:
    filled = {}
    for name, field in model.model_fields.items():
        key = field.alias or name
        given = value.get(key, field.get_default())
        if given is not PydanticUndefined and not isinstance(given, NoneType):
            filled[key] = _fill(field.annotation, given)
    return filled
