# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The bounds of quantities, which a JSON schema cannot express, for the check by a template."""

from collections.abc import Callable, Iterator, Mapping
import inspect
import types
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from controller.config.fields import Quantity
from controller.core.units import UnitError

__all__ = ("ANY", "bounds", "quantities")

# Stands for each key of a mapping and each entry of a list.
ANY = "*"
Path = tuple[str, ...]

# All units of all kinds, alone and per second.
_UNITS = (
    *("", "%", "ns", "us", "ms", "s", "m", "h", "cpu", "cpus", "mcpu", "kbit", "mbit", "gbit"),
    *("B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"),
)


def bounds(model: type[BaseModel]) -> dict[str, Any]:
    """Return the bounds of all quantities of *model* as data of JSON.

    ``units`` has the factor of each unit by kind of quantity. Each of ``quantities`` has the path
    of its keys, and the bounds as text and as numbers.
    """
    found = list(quantities(model))
    kinds = {quantity.parse.__name__: quantity.parse for _, quantity in found}
    return {
        "units": {name: dict(_factors(parse)) for name, parse in kinds.items()},
        "quantities": [
            {
                "path": path,
                "kind": quantity.parse.__name__,
                "from": quantity.least,
                "to": quantity.most,
                "least": quantity.parse(quantity.least),
                "most": quantity.parse(quantity.most),
            }
            for path, quantity in found
        ],
    }


def quantities(annotation: Any, path: Path = ()) -> Iterator[tuple[Path, Quantity]]:
    """Yield each quantity below *annotation*, such as a model, with the path of its keys."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            at = (*path, field.alias or name)
            own = _own(field.metadata)
            if own is None:
                yield from quantities(field.annotation, at)
            else:
                yield at, own
        return
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        own = _own(arguments[1:])
        if own is None:
            yield from quantities(arguments[0], path)
        else:
            yield path, own
    elif origin is list:
        yield from quantities(arguments[0], (*path, ANY))
    elif origin in (dict, Mapping):
        yield from quantities(arguments[1], (*path, ANY))
    elif origin in (Union, types.UnionType):
        for each in arguments:
            yield from quantities(each, path)


def _own(metadata: Any) -> Quantity | None:
    return next((each for each in metadata if isinstance(each, Quantity)), None)


def _factors(parse: Callable[[str], float]) -> Iterator[tuple[str, float]]:
    for unit in (*_UNITS, *(f"{each}/s" for each in _UNITS)):
        try:
            yield unit, parse(f"1{unit}")
        except UnitError:
            continue
