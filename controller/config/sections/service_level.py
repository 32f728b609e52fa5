# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``service_level:``: the sources of services' own figures.

Secrets are never in the configuration: the value of a header is in a file, which is read before
every request, so that a secret can be changed without a reload.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
import ipaddress
from pathlib import Path
import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, WithJsonSchema

from controller.config.fields import Strict, Text, duration, raw_default
from controller.config.yaml_document import Document, Loc
from controller.core.units import NS_PER_MS, NS_PER_SEC, NS_PER_US

__all__ = (
    "Endpoint",
    "JsonField",
    "MetricLine",
    "PrometheusQuery",
    "Push",
    "ServiceLevelConfig",
    "ServiceLevelModel",
    "ServiceSource",
    "build_service_level",
)

# Length of each unit in ns; None: the figure is a number and not a time.
_UNITS: Mapping[str, int | None] = {
    "s": NS_PER_SEC,
    "ms": NS_PER_MS,
    "us": NS_PER_US,
    "ns": 1,
    "number": None,
}
_KINDS = ("prometheus", "metrics", "json", "push")
_MAX_SOCKET_PATH = 107  # sun_path of unix(7), less the final NUL
_HEADER = r"^[A-Za-z0-9][A-Za-z0-9-]{0,63}$"
# Headers that the HTTP client sets itself.
_CLIENT_HEADERS = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "accept-encoding", "te"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An HTTP URL and the files with a bearer token, values of headers by name, and CAs."""

    url: str
    token_file: Path | None
    header_files: tuple[tuple[str, Path], ...]
    ca_file: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusQuery:
    """An instant query of a Prometheus server that results in one number."""

    endpoint: Endpoint
    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricLine:
    """A page in the text format of Prometheus: one series, selected by name and ``labels``.

    With ``quantile`` it is a histogram of this name, of which several series may match.
    """

    endpoint: Endpoint
    metric: str
    labels: tuple[tuple[str, str], ...]
    quantile: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonField:
    """A number in a JSON document, selected by a JSON pointer (RFC 6901)."""

    endpoint: Endpoint
    pointer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """Datagrams on the unix socket, sent by processes of ``users`` (names or uids)."""

    users: tuple[str | int, ...]


_Source = PrometheusQuery | MetricLine | JsonField | Push


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSource:
    """The source of one service's figure.

    ``unit_ns`` is the length of the source's unit; ``None``: its figures are not times. A figure
    older than ``max_age_ns`` is not used. ``every_ns`` is the time between two requests and
    ``timeout_ns`` their time-out; both are unused for a push.
    """

    service: str
    source: _Source
    unit_ns: int | None
    every_ns: int
    timeout_ns: int
    max_age_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevelConfig:
    """The checked section: all sources, and the socket for pushes.

    Members of ``group`` may write to the socket. ``None``: all users may, or only root if root is
    the only user of every push.
    """

    socket: Path
    group: str | None
    sources: tuple[ServiceSource, ...] = ()


class _EndpointModel(Strict):
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


class _PrometheusModel(_EndpointModel):
    query: Annotated[str, Field(min_length=1, max_length=4000)]
    """Instant query in PromQL whose result is one number."""


class _MetricsModel(_EndpointModel):
    metric: Annotated[str, Field(pattern=r"^[A-Za-z_:][A-Za-z0-9_:]{0,199}$")]
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


class _JsonModel(_EndpointModel):
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


class _PushModel(Strict):
    users: Annotated[list[_User], Field(min_length=1, max_length=32)] = raw_default(["root"])
    """Users, by name or uid, whose processes may send the figure."""


class _SourceModel(Strict):
    prometheus: _PrometheusModel | None = None
    """Read the figure by a query of a Prometheus server."""
    metrics: _MetricsModel | None = None
    """Read the figure from a page in the text format of Prometheus."""
    json_: Annotated[_JsonModel | None, Field(alias="json")] = None
    """Read the figure from a JSON document."""
    push: _PushModel | None = None
    """The service sends the figure to the socket."""
    unit: Annotated[str, Field(pattern=r"^(s|ms|us|ns|number)$"), Text] = "s"
    """Unit of the number: s, ms, us, ns, or number for a figure that is no time."""
    every: Annotated[int, duration("1s", "10m")] = raw_default("5s")
    """Time between two requests; shorten it to react faster."""
    timeout: Annotated[int, duration("10ms", "1m")] = raw_default("2s")
    """Time after which a request fails; at most the time between two."""
    max_age: Annotated[int, duration("1s", "1h")] | None = None
    """Age from which a figure is not used any more; default: three times every, plus timeout."""


class ServiceLevelModel(Strict):
    """Services by name, each with exactly one source, and the socket for pushes."""

    socket: str = "/run/sweetpoint-push/socket"
    """Unix socket for figures that services push."""
    socket_group: str | None = None
    """Group whose members may write to the socket, instead of the users of the pushes."""
    services: Annotated[
        dict[Annotated[str, Field(min_length=1, max_length=253)], _SourceModel],
        Field(min_length=1, max_length=100),
    ]
    """The source of each figure, by name of the service."""


def build_service_level(
    document: Document,
    model: ServiceLevelModel | None,
    *,
    services: Collection[str],
    steered: Collection[str],
    problems: list[str],
) -> ServiceLevelConfig | None:
    """Return the checked section, ``None`` without it; conflicts are added to *problems*.

    :param services: names of all services of the configuration; empty if pods name services.
    :param steered: services whose profile has a sweet point for their own figure.
    """
    top: Loc = ("service_level",)
    for service in sorted(set(steered) - set(model.services if model else ())):
        text = f"{service!r} has a sweet point for its own figure, but no source here: add one of "
        text += ", ".join(_KINDS)
        problems.append(document.problem((*top, "services"), text))
    if model is None:
        return None
    path = Path(model.socket)
    if not path.is_absolute() or ".." in path.parts or "\0" in model.socket:
        problems.append(document.problem((*top, "socket"), "must be an absolute path without '..'"))
    elif len(str(path).encode()) > _MAX_SOCKET_PATH:
        text = f"must be at most {_MAX_SOCKET_PATH} bytes, the kernel's limit"
        problems.append(document.problem((*top, "socket"), text))
    sources = []
    for service, one in model.services.items():
        loc: Loc = (*top, "services", service)
        problems += [document.problem((*loc, *at), text) for at, text in _find_conflicts(one)]
        if services and service not in services:
            problems.append(document.problem(loc, "no workload belongs to this service"))
        source = _source(one)
        if source is not None:
            sources.append(_service_source(service, one, source))
    return ServiceLevelConfig(socket=path, group=model.socket_group, sources=tuple(sources))


def _service_source(service: str, model: _SourceModel, source: _Source) -> ServiceSource:
    return ServiceSource(
        service=service,
        source=source,
        unit_ns=_UNITS[model.unit],
        every_ns=model.every,
        timeout_ns=model.timeout,
        max_age_ns=model.max_age or 3 * model.every + model.timeout,
    )


def _sources(model: _SourceModel) -> dict[str, _EndpointModel | _PushModel]:
    found = zip(_KINDS, (model.prometheus, model.metrics, model.json_, model.push), strict=True)
    return {kind: one for kind, one in found if one is not None}


def _source(model: _SourceModel) -> _Source | None:
    for one in _sources(model).values():
        match one:
            case _PrometheusModel():
                return PrometheusQuery(endpoint=_endpoint(one), query=one.query)
            case _MetricsModel():
                labels = tuple(sorted(one.labels.items()))
                return MetricLine(
                    endpoint=_endpoint(one),
                    metric=one.metric,
                    labels=labels,
                    quantile=one.quantile,
                )
            case _JsonModel():
                return JsonField(endpoint=_endpoint(one), pointer=one.pointer)
            case _PushModel():
                return Push(users=tuple(int(u) if u.isdigit() else u for u in one.users))
    return None


def _endpoint(model: _EndpointModel) -> Endpoint:
    return Endpoint(
        url=model.url,
        token_file=None if model.token_file is None else Path(model.token_file),
        header_files=tuple((name, Path(file)) for name, file in model.header_files.items()),
        ca_file=None if model.ca_file is None else Path(model.ca_file),
    )


def _find_conflicts(model: _SourceModel) -> Iterator[tuple[Loc, str]]:
    given = _sources(model)
    if len(given) != 1:
        have = f", not {' and '.join(given)}" if given else ""
        yield (), f"must have exactly one of {', '.join(_KINDS)}{have}"
    if model.timeout > model.every:
        yield ("timeout",), "must not be longer than 'every'"
    if model.max_age is not None and model.max_age < model.every and "push" not in given:
        yield ("max_age",), "must not be shorter than 'every'"
    if model.metrics is not None and model.metrics.quantile is not None:
        if model.metrics.metric.endswith("_bucket"):
            yield ("metrics", "metric"), "must be the name without _bucket for a quantile"
        if "le" in model.metrics.labels:
            yield ("metrics", "labels"), "must not choose a bucket (le) for a quantile"
    for kind, one in given.items():
        if isinstance(one, _EndpointModel):
            yield from (((kind, *at), text) for at, text in _find_endpoint_conflicts(one))


def _find_endpoint_conflicts(model: _EndpointModel) -> Iterator[tuple[Loc, str]]:
    host, secure, problem = _read_url(model.url)
    if problem:
        yield ("url",), problem
        return
    secrets = {
        "token_file": model.token_file,
        **{f"header_files {name}": file for name, file in model.header_files.items()},
    }
    for name, file in secrets.items():
        if file is not None and not _plain_path(file):
            yield (name.split()[0],), f"{name}: must be an absolute path"
        if file is not None and not secure and not _loopback(host):
            text = "needs https: with http the secret can be read in transit"
            yield (name.split()[0],), text
    if model.ca_file is not None and not _plain_path(model.ca_file):
        yield ("ca_file",), "must be an absolute path"
    if model.ca_file is not None and not secure:
        yield ("ca_file",), "is only used with https"
    for name in model.header_files:
        if name.lower() in _CLIENT_HEADERS:
            yield ("header_files",), f"{name} cannot be set: the client sets it"


def _read_url(url: str) -> tuple[str, bool, str]:
    """Return (host, whether the scheme is https, problem) of *url*; no problem is empty."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "", False, "is not a URL"
    if not re.fullmatch(r"[!-~]+", url) or parts.scheme not in ("http", "https") or not host:
        return "", False, "must be a URL such as http://127.0.0.1:9090, without spaces"
    if parts.username is not None or parts.password is not None:
        return "", False, "must not contain a password; see token_file"
    if parts.fragment or port == 0:
        return "", False, "must have neither a fragment (#...) nor port 0"
    return host, parts.scheme == "https", ""


def _plain_path(text: str) -> bool:
    return text.startswith("/") and "\0" not in text


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
