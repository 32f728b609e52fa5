# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Base of the models of configuration files: strict records, quantities with units, validation.

``check`` validates a document against a pydantic model and turns each error of pydantic into a
message with file, line, field and, where one is known, a hint.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    WithJsonSchema,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from controller.config.yaml_document import ConfigError, Document, Loc
from controller.core.units import UnitError, parse_cpus, parse_duration, parse_rate, parse_ratio
from controller.host.names import did_you_mean

__all__ = (
    "RATE",
    "RATIO",
    "RATIO_ABOVE",
    "RATIO_OF_LIMIT",
    "Described",
    "Measure",
    "Quantity",
    "Strict",
    "Text",
    "check",
    "cpus",
    "duration",
    "model_in",
    "raw_default",
    "sentence",
)

_PYDANTIC_STEPS = ("<mapping>", "<auto>", "<text>", "[key]")

_ModelT = TypeVar("_ModelT", bound=BaseModel)


def check(document: Document, model: type[_ModelT]) -> _ModelT:
    """Return the data of *document*, validated as a *model*.

    :raises ConfigError: the data does not match the model; every mismatch is listed.
    """
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        found = error.errors(include_url=False)
        raise ConfigError([_describe(document, model, one) for one in found]) from None


def _describe(document: Document, model: type[BaseModel], error: Mapping[str, Any]) -> str:
    kind, message = error["type"], str(error["msg"])
    *parents, last = error["loc"] or ("[key]",)
    # Some parts of a location are steps inside pydantic. An unknown key is always a key of the
    # file, even if it has the name of such a step.
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
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        field = fields.get(str(part))
        model = (field and model_in(field.annotation)) or model
    left_out = model.not_offered if issubclass(model, Strict) else ()
    fields = {name: field for name, field in model.model_fields.items() if name not in left_out}
    known = sorted(field.alias or name for name, field in fields.items())
    hint = did_you_mean(str(loc[-1]), known, most=1) or f"known: {', '.join(known)}"
    what = model.unknown_key if issubclass(model, Strict) else "unknown key"
    return f"{what} ({hint})"


def model_in(annotation: object) -> type[BaseModel] | None:
    """Return the model that *annotation* has, ``None``: it has none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(model_in, get_args(annotation))), None)


@dataclass(frozen=True)
class Quantity:
    """Annotation of a field whose value is text with a unit, from *least* to *most* inclusive.

    *parse* converts the text and raises ``UnitError``; *pattern* is for the JSON schema.
    """

    parse: Callable[[str], float]
    pattern: str
    least: str
    most: str

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.read, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        # Only a ratio may be a number without a unit.
        kind = ["string", "number"] if self.parse is parse_ratio else "string"
        return {"type": kind, "pattern": self.pattern, "description": self.bounds}

    @property
    def bounds(self) -> str:
        """The range in words, for people: a schema cannot compare quantities."""
        return f"From {self.least} to {self.most}."

    def read(self, value: object) -> float:
        """Return *value* as a number.

        :raises PydanticCustomError: not a number with a unit, or out of range.
        """
        if value is None or isinstance(value, bool | list | dict):
            raise PydanticCustomError("unit", "must be a number with its unit")
        try:
            # A number without a unit takes the same path: parse refuses it if one is needed.
            number = self.parse(str(value))
        except UnitError as error:
            raise PydanticCustomError("unit", "{reason}", {"reason": str(error)}) from None
        if not self.parse(self.least) <= number <= self.parse(self.most):
            raise PydanticCustomError(
                "range",
                "must be between {least} and {most}",
                {"least": self.least, "most": self.most},
            )
        return number


def duration(least: str, most: str) -> Quantity:
    """Return the annotation of a duration such as ``2s``, read as ns."""
    return Quantity(parse_duration, r"^[0-9]+(\.[0-9]+)? *(ns|us|ms|s|m|h)$", least, most)


def cpus(least: str, most: str) -> Quantity:
    """Return the annotation of an amount of CPU such as ``1.5cpu``, read as CPUs."""
    return Quantity(parse_cpus, r"^[0-9]+(\.[0-9]+)? *(cpus?|mcpu)$", least, most)


RATIO = Quantity(parse_ratio, r"^[0-9]+(\.[0-9]+)? *%?$", "0", "1")
RATIO_OF_LIMIT = Quantity(parse_ratio, r"^[0-9]+(\.[0-9]+)? *%?$", "1%", "100%")
RATIO_ABOVE = Quantity(parse_ratio, r"^[0-9]+(\.[0-9]+)? *%?$", "1%", "1000%")
RATE = Quantity(parse_rate, r"^[0-9]+(\.[0-9]+)? */ *s$", "0.01/s", "100/s")

# A value whose unit depends on the indicator or knob; it stays text until that is known.
Measure = Annotated[
    str,
    BeforeValidator(lambda v: str(v) if isinstance(v, int | float) else v),
    WithJsonSchema({"type": ["string", "number"]}),
]
# For enumerations: strict mode accepts only their members, and a file holds their text.
Text = Field(strict=False)


class Described(BaseModel):
    """Base of models whose fields have a sentence: what it is, unit, when to change it.

    It is the docstring below the field. The JSON schema, docs/REFERENCE.md, the chart's values and
    ``sweetpoint check --resolved`` show it.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        found = handler.resolve_ref_schema(handler(schema))
        for name, field in cls.model_fields.items():
            # The description of a field replaces that of its type, so the bounds follow it.
            bounds = [each.bounds for each in field.metadata if isinstance(each, Quantity)]
            if field.description:
                text = " ".join([sentence(field), *bounds])
                found["properties"][field.alias or name]["description"] = text
        return found


class Strict(Described):
    """Base of the models of files: unknown keys and implicit conversions are errors."""

    # Defaults have the form of the file and are validated like values from the file.
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, validate_default=True
    )
    # What a message calls a key that the model does not have.
    unknown_key: ClassVar[str] = "unknown key"
    # Keys that have a message of their own, so no message offers them.
    not_offered: ClassVar[tuple[str, ...]] = ()


def sentence(field: FieldInfo) -> str:
    """Return what the key is, in one sentence on one line."""
    return " ".join((field.description or "").split())


def raw_default(default: object) -> Any:
    """Return a default in the form of the file; validation converts it to the field's type."""
    return Field(default)
