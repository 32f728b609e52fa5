# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The checked sources of services' own figures, as the section ``service_level`` describes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

__all__ = (
    "Endpoint",
    "JsonField",
    "MetricLine",
    "PodAddress",
    "PodFigures",
    "PrometheusQuery",
    "Push",
    "ServiceLevelConfig",
    "ServiceSource",
    "Source",
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

    With ``quantile`` it is a histogram of this name, and with ``per`` a counter, whose growth is
    divided by that of the counter ``per``. Several series may match then.
    """

    endpoint: Endpoint
    metric: str
    labels: tuple[tuple[str, str], ...]
    quantile: float | None = None
    per: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonField:
    """A number in a JSON document, selected by a JSON pointer (RFC 6901)."""

    endpoint: Endpoint
    pointer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """Datagrams on the unix socket, sent by processes of ``users`` (names or uids)."""

    users: tuple[str | int, ...]


Source = PrometheusQuery | MetricLine | JsonField | Push


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSource:
    """The source of one service's figure.

    ``unit_ns`` is the length of the source's unit; ``None``: its figures are not times. A figure
    older than ``max_age_ns`` is not used. ``every_ns`` is the time between two requests and
    ``timeout_ns`` their time-out; both are unused for a push. ``is_pod``: it is one pod of the
    service, whose figure is the worst of its pods.
    """

    service: str
    source: Source
    unit_ns: int | None
    every_ns: int
    timeout_ns: int
    max_age_ns: int
    is_pod: bool = False

    @property
    def place(self) -> str:
        """The service, and the address of the pod if it is one, for messages."""
        at = self.source.endpoint.url if isinstance(self.source, MetricLine) else ""
        return f"{self.service} at {at}" if self.is_pod else self.service


class PodAddress(NamedTuple):
    """A pod of a service, with the name of its profile."""

    service: str
    profile: str
    ip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFigures:
    """Where each pod with a profile has its figure: ``line`` on the page at ``port``."""

    profile: str
    port: int
    line: MetricLine
    unit_ns: int | None
    every_ns: int
    timeout_ns: int
    max_age_ns: int

    def source_of(self, pod: PodAddress) -> ServiceSource:
        """Return the source of *pod*; the URL of ``line`` is its path."""
        host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
        url = f"http://{host}:{self.port}{self.line.endpoint.url}"
        return ServiceSource(
            service=pod.service,
            source=replace(self.line, endpoint=replace(self.line.endpoint, url=url)),
            unit_ns=self.unit_ns,
            every_ns=self.every_ns,
            timeout_ns=self.timeout_ns,
            max_age_ns=self.max_age_ns,
            is_pod=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevelConfig:
    """The checked section: all sources, and the socket for pushes. ``pods`` is by profile.

    Members of ``group`` may write to the socket. ``None``: all users may, or only root if root is
    the only user of every push.
    """

    socket: Path
    group: str | None
    sources: tuple[ServiceSource, ...] = ()
    pods: Mapping[str, PodFigures] = field(default_factory=dict)
