# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The shape of the configuration file and of profile files: keys, types, units, ranges.

What one field alone can get wrong is checked here; what needs two fields, two files or the host
is checked in ``controller.config``. The JSON schemas for editors come from these models.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from controller.model import Channel, IndicatorName, Knob, Mode, QosClass, SafeState
from controller.units import UnitError, parse_cpus, parse_duration, parse_ratio

__all__ = (
    "ConfigModel",
    "EvictModel",
    "GainsModel",
    "IndicatorModel",
    "KnobModel",
    "ProfileModel",
    "WorkloadModel",
)


@dataclass(frozen=True)
class _Quantity:
    """Makes a field read text with a unit, by *parse*, and keep it within least and most."""

    parse: Callable[[str], float]
    pattern: str
    least: str
    most: str

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._validate, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        # Only a ratio can do without a unit.
        kind = ["string", "number"] if self.parse is parse_ratio else "string"
        return {"type": kind, "pattern": self.pattern}

    def _validate(self, value: object) -> float:
        if value is None or isinstance(value, bool | list | dict):
            raise PydanticCustomError("unit", "must be a number with its unit")
        try:
            # A bare number goes the same way: parse refuses it where a unit is needed.
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


def _parse_rate(text: str) -> float:
    number, slash, unit = text.partition("/")
    try:
        if slash and unit.strip() == "s":
            return float(number)
    except ValueError:
        pass
    raise UnitError(f"{text!r} is not a rate such as 2/s")


def _duration(least: str, most: str) -> _Quantity:
    return _Quantity(parse_duration, r"^[0-9]+(\.[0-9]+)? *(ns|us|ms|s|m|h)$", least, most)


def _cpus(least: str, most: str) -> _Quantity:
    return _Quantity(parse_cpus, r"^[0-9]+(\.[0-9]+)? *(cpus?|mcpu)$", least, most)


_RATIO = _Quantity(parse_ratio, r"^[0-9]+(\.[0-9]+)? *%?$", "0", "1")
_RATE = _Quantity(_parse_rate, r"^[0-9]+(\.[0-9]+)? */ *s$", "0.01/s", "100/s")

# The unit depends on the indicator, so the text is read where the indicator is known.
_Measure = Annotated[
    str,
    BeforeValidator(lambda v: str(v) if isinstance(v, int | float) else v),
    WithJsonSchema({"type": ["string", "number"]}),
]
# Strict mode would ask for members of the enumeration; a file can only hold their text.
_Text = Field(strict=False)


class _Strict(BaseModel):
    # Defaults are written as an operator would write them and go through validation, too.
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, validate_default=True
    )


def _written(default: object) -> Any:
    """Return a default in the form of the file; validation turns it into the field's type."""
    return Field(default)


def _gains_kind(value: object) -> str | None:
    if isinstance(value, dict | GainsModel):
        return "<mapping>"
    return "<auto>" if value == "auto" else None


class GainsModel(_Strict):
    """PID gains per unit of deviation."""

    kp: Annotated[float, Field(gt=0, le=100)]
    ti: Annotated[int, _duration("1ms", "1h")]
    td: Annotated[int, _duration("0s", "1h")] = _written("0s")


class IndicatorModel(_Strict):
    """The sweet point of one indicator and how to steer to it."""

    sweet_point: _Measure
    tolerance: Annotated[float, Field(gt=1, le=100)] = 2.0
    resolution: _Measure | None = None
    dead_zone: Annotated[float, Field(ge=0, lt=1)] = 0.1
    window: Annotated[int, _duration("50ms", "1h")] = _written("1s")
    filter: Annotated[int, _duration("0s", "1h")] = _written("4s")
    min_samples: Annotated[int, Field(ge=0, le=10**6)] | None = None
    channel: Annotated[Channel, _Text] = Channel.CPU
    gains: Annotated[
        Annotated[Literal["auto"], Tag("<auto>")] | Annotated[GainsModel, Tag("<mapping>")],
        Discriminator(
            _gains_kind,
            custom_error_type="gains",
            custom_error_message="must be auto or a mapping such as {kp: 0.4, ti: 3s, td: 0s}",
        ),
    ] = "auto"


class KnobModel(_Strict):
    """How far and how fast a graded knob may be moved."""

    # The kernel's smallest quota is 1 ms, our longest period 100 ms: 10 mcpu.
    floor: Annotated[float, _cpus("10mcpu", "1024cpu")] = _written("50mcpu")
    squeeze: Annotated[float, _RATE] = _written("2/s")
    release_step: Annotated[float, Field(gt=0, le=1)] = 0.01
    release_spacing: Annotated[int, _duration("0s", "1h")] = _written("500ms")


class EvictModel(_Strict):
    """When best-effort work that cannot be squeezed enough is removed."""

    enabled: bool = False
    after: Annotated[int, _duration("1s", "24h")] = _written("60s")


class ProfileModel(_Strict):
    """A profile file: the numbers for one type of service."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
    description: str = ""
    indicators: Annotated[
        dict[Annotated[IndicatorName, _Text], IndicatorModel], Field(min_length=1)
    ]
    sched_idle: bool = True
    be_share_min: Annotated[float, _RATIO] = _written("20%")
    idle_below: Annotated[float, _RATIO] = _written("0.5%")
    knobs: dict[Annotated[Knob, _Text], KnobModel] = _written({"cpu.quota": {}})
    evict: EvictModel = _written({})


class WorkloadModel(_Strict):
    """One or more cgroups that belong together; ``cgroup`` is a glob per path component."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,252}$")]
    cgroup: str
    qos: Annotated[QosClass, _Text] = Field(alias="class")
    service: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    profile: str | None = None


class ConfigModel(_Strict):
    """The configuration file of a host without Kubernetes."""

    mode: Annotated[Mode, _Text] = Mode.OBSERVE
    tick: Annotated[int, _duration("50ms", "10s")] = _written("200ms")
    state_dir: str = "/run/sweetpoint"
    http: str = "127.0.0.1:9464"
    reserve: Annotated[float, _cpus("0cpu", "1024cpu")] = _written("100mcpu")
    safe_state: Annotated[SafeState, _Text] = SafeState.STATIC
    workloads: Annotated[list[WorkloadModel], Field(min_length=1)]
    profiles: list[Annotated[str, Field(min_length=1)]] = []
