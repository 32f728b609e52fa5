# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A document against its strict model; each complaint names file, line and field."""

from collections.abc import Mapping
import difflib
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from controller.configfile import ConfigError, Document, Loc

__all__ = ("check",)

_PYDANTIC_STEPS = ("<mapping>", "<auto>", "[key]")

_ModelT = TypeVar("_ModelT", bound=BaseModel)


def check(document: Document, model: type[_ModelT]) -> _ModelT:
    """Return the data of *document* as a *model*.

    :raises ConfigError: it is none.
    """
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        found = error.errors(include_url=False)
        raise ConfigError([_explain(document, model, one) for one in found]) from None


def _explain(document: Document, model: type[BaseModel], error: Mapping[str, Any]) -> str:
    kind, message = error["type"], str(error["msg"])
    *parents, last = error["loc"] or ("[key]",)
    # Some parts are pydantic's own steps; an unknown key is always the file's.
    own = [last] if kind == "extra_forbidden" or last not in _PYDANTIC_STEPS else []
    loc: Loc = (*(part for part in parents if part not in _PYDANTIC_STEPS), *own)
    if kind == "extra_forbidden":
        message = _unknown_key(model, loc)
    elif kind == "missing":
        message = "is missing"
    elif kind in ("model_type", "dict_type", "model_attributes_type"):
        message = "must be a mapping"
    elif kind == "too_short":
        message = "must have at least one entry"
    elif not isinstance(error["input"], list | dict) and kind not in ("unit", "gains"):
        message = message.replace("Input should", "must").replace("String should", "must")
        message += f", not {error['input']!r}"
    return document.problem(loc, message)


def _unknown_key(model: type[BaseModel], loc: Loc) -> str:
    for part in loc[:-1]:
        field = model.model_fields.get(str(part))
        model = (field and _model_in(field.annotation)) or model
    known = sorted(field.alias or name for name, field in model.model_fields.items())
    close = difflib.get_close_matches(str(loc[-1])[:64], known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
    return f"unknown key ({hint})"


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
