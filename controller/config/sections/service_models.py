# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The models of the section ``service_level:``."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema

from controller.config.fields import Strict, Text, duration, raw_default
from controller.config.sections.programs import PROGRAMS, known_program

__all__ = (
    "KINDS",
    "EndpointModel",
    "JsonModel",
    "MetricsModel",
    "PodFiguresModel",
    "PrometheusModel",
    "PushModel",
    "SeriesModel",
    "ServiceLevelModel",
    "SourceModel",
    "TimingModel",
)

KINDS = ("prometheus", "metrics", "json", "push")
_HEADER = r"^[A-Za-z0-9][A-Za-z0-9-]{0,63}$"
_METRIC = r"^[A-Za-z_:][A-Za-z0-9_:]{0,199}$"


def _require(found: dict[str, Any], *keys: str) -> dict[str, Any]:
    # In the JSON schema *found*: the keys, or a program, which has them.
    found.pop("required", None)
    found["anyOf"] = [{"required": ["program"]}, {"required": list(keys)}]
    return found


class EndpointModel(Strict):
    url: Annotated[str, Field(max_length=2000)]
    """Address that is read, http or https, without a password."""
    token_file: str | None = None
    """File with a bearer token, read before each request; needs https or this host."""
    header_files: Annotated[
        dict[Annotated[str, Field(pattern=_HEADER)], str], Field(max_length=16)
    ] = raw_default({})
    """Files with the values of further headers, by name of the header."""
    ca_file: str | None = None
    """File with the certificates that sign the server's; without it those of the system."""


class PrometheusModel(EndpointModel):
    query: Annotated[str, Field(min_length=1, max_length=4000)]
    """Instant query in PromQL whose result is one number."""


class SeriesModel(Strict):
    program: Annotated[str | None, WithJsonSchema({"enum": sorted(PROGRAMS)})] = None
    """Program whose page it is, such as envoy; it gives every key that is missing here."""
    metric: Annotated[str, Field(pattern=_METRIC)]
    """Name of the series on the page; of a histogram, without _bucket."""
    labels: Annotated[
        dict[
            Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")],
            Annotated[str, Field(max_length=1000)],
        ],
        Field(max_length=32),
    ] = raw_default({})
    """Labels that the series must have, so that exactly one matches, or the wanted histograms."""
    quantile: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Quantile of the histogram between two requests, such as 0.99; without it a series."""
    per: Annotated[str, Field(pattern=_METRIC)] | None = None
    """Counter of events; the figure is then the growth of metric per event between two requests."""


class MetricsModel(SeriesModel, EndpointModel):
    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return _require(super().__get_pydantic_json_schema__(schema, handler), "url", "metric")


class JsonModel(EndpointModel):
    pointer: Annotated[str, Field(pattern=r"^(/([^~]|~[01])*)?$", max_length=1000)]
    """JSON pointer (RFC 6901) to the number, such as /latency/p99."""


# A uid is converted to text instead of declaring a union, whose parts pydantic would add to the
# location of an error.
_User = Annotated[
    str,
    Field(pattern=r"^([0-9]{1,10}|[A-Za-z_][A-Za-z0-9_.-]{0,31}\$?)$"),
    BeforeValidator(lambda v: str(v) if type(v) is int else v),
    WithJsonSchema({"type": ["string", "integer"]}),
]


class PushModel(Strict):
    users: Annotated[list[_User], Field(min_length=1, max_length=32)] = raw_default(["root"])
    """Users, by name or uid, whose processes may send the figure."""


class TimingModel(Strict):
    unit: Annotated[str, Field(pattern=r"^(s|ms|us|ns|number)$"), Text] = "s"
    """Unit of the number: s, ms, us, ns, or number for a figure that is no time."""
    every: Annotated[int, duration("1s", "10m")] = raw_default("5s")
    """Time between two requests; shorten it to react faster."""
    timeout: Annotated[int, duration("10ms", "1m")] = raw_default("2s")
    """Time after which a request fails; at most the time between two."""
    max_age: Annotated[int, duration("1s", "1h")] | None = None
    """Age from which a figure is not used any more; default: three times every, plus timeout."""


class SourceModel(TimingModel):
    prometheus: PrometheusModel | None = None
    """Read the figure by a query of a Prometheus server."""
    metrics: MetricsModel | None = None
    """Read the figure from a page in the text format of Prometheus."""
    json_: Annotated[JsonModel | None, Field(alias="json")] = None
    """Read the figure from a JSON document."""
    push: PushModel | None = None
    """The service sends the figure to the socket."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: object) -> object:
        metrics = data.get("metrics") if isinstance(data, Mapping) else None
        if not isinstance(data, Mapping) or not isinstance(metrics, Mapping):
            return data
        if (program := known_program(metrics)) is None:
            return data
        completed = program.url | program.series | dict(metrics)
        return {"unit": program.unit} | dict(data) | {"metrics": completed}


class PodFiguresModel(SeriesModel, TimingModel):
    """The page of metrics of each pod with a profile."""

    port: Annotated[int, Field(ge=1, le=65535)]
    """Port at the pod's address, http only."""
    path: Annotated[str, Field(pattern=r"^/[!-~]{0,999}$")] = "/metrics"
    """Path of the page, with a query if it needs one."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: object) -> object:
        if not isinstance(data, Mapping) or (program := known_program(data)) is None:
            return data
        return program.page | program.series | {"unit": program.unit} | dict(data)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return _require(super().__get_pydantic_json_schema__(schema, handler), "port", "metric")


class ServiceLevelModel(Strict):
    """Services by name, each with exactly one source, pods by profile, and the push socket."""

    socket: str = "/run/sweetpoint-push/socket"
    """Unix socket for figures that services push."""
    socket_group: str | None = None
    """Group whose members may write to the socket, instead of the users of the pushes."""
    services: Annotated[
        dict[Annotated[str, Field(min_length=1, max_length=253)], SourceModel],
        Field(max_length=100),
    ] = raw_default({})
    """The source of each figure, by name of the service."""
    pods: Annotated[
        dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")], PodFiguresModel],
        Field(max_length=100),
    ] = raw_default({})
    """Where pods of this node have their figures, by profile; the worst of its pods is that of the
    service."""
