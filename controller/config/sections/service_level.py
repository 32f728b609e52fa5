# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``service_level:``: the sources of services' own figures.

Secrets are never in the configuration: the value of a header is in a file, which is read before
every request, so that a secret can be changed without a reload.
"""

from collections.abc import Collection, Iterator, Mapping
import ipaddress
from pathlib import Path
import re
from urllib.parse import urlsplit

from controller.config.sections.service_models import (
    KINDS,
    EndpointModel,
    JsonModel,
    MetricsModel,
    PodFiguresModel,
    PrometheusModel,
    PushModel,
    SeriesModel,
    ServiceLevelModel,
    SourceModel,
    TimingModel,
)
from controller.config.sections.service_sources import (
    Endpoint,
    JsonField,
    MetricLine,
    PodFigures,
    PrometheusQuery,
    Push,
    ServiceLevelConfig,
    ServiceSource,
    Source,
)
from controller.config.yaml_document import Document, Loc
from controller.core.units import NS_PER_MS, NS_PER_SEC, NS_PER_US

__all__ = ("build_service_level",)

# Length of each unit in ns; None: the figure is a number and not a time.
_UNITS: Mapping[str, int | None] = {
    "s": NS_PER_SEC,
    "ms": NS_PER_MS,
    "us": NS_PER_US,
    "ns": 1,
    "number": None,
}
_MAX_SOCKET_PATH = 107  # sun_path of unix(7), less the final NUL
# Headers that the HTTP client sets itself.
_CLIENT_HEADERS = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "accept-encoding", "te"}
)


def build_service_level(
    document: Document,
    model: ServiceLevelModel | None,
    *,
    services: Collection[str],
    steered: Collection[str],
    has_pods: bool,
    problems: list[str],
) -> ServiceLevelConfig | None:
    """Return the checked section, ``None`` without it; conflicts are added to *problems*.

    :param services: names of all services of the configuration; empty if pods name services.
    :param steered: services whose profile has a sweet point for their own figure.
    :param has_pods: this host is a node of a cluster.
    """
    top: Loc = ("service_level",)
    for service in sorted(set(steered) - set(model.services if model else ())):
        text = f"{service!r} has a sweet point for its own figure, but no source here: add one of "
        text += ", ".join(KINDS)
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
    if not model.services and not model.pods:
        problems.append(document.problem(top, "must have services, or pods"))
    if model.pods and not has_pods:
        problems.append(document.problem((*top, "pods"), "needs the section kubernetes"))
    for profile, each in model.pods.items():
        loc = (*top, "pods", profile)
        problems += [document.problem((*loc, *at), text) for at, text in _find_pod_conflicts(each)]
    return ServiceLevelConfig(
        socket=path,
        group=model.socket_group,
        sources=tuple(sources),
        pods={profile: _pod_figures(profile, each) for profile, each in model.pods.items()},
    )


def _pod_figures(profile: str, model: PodFiguresModel) -> PodFigures:
    return PodFigures(
        profile=profile,
        port=model.port,
        line=MetricLine(
            endpoint=Endpoint(url=model.path, token_file=None, header_files=(), ca_file=None),
            metric=model.metric,
            labels=tuple(sorted(model.labels.items())),
            quantile=model.quantile,
            per=model.per,
        ),
        unit_ns=_UNITS[model.unit],
        every_ns=model.every,
        timeout_ns=model.timeout,
        max_age_ns=model.max_age or 3 * model.every + model.timeout,
    )


def _service_source(service: str, model: SourceModel, source: Source) -> ServiceSource:
    return ServiceSource(
        service=service,
        source=source,
        unit_ns=_UNITS[model.unit],
        every_ns=model.every,
        timeout_ns=model.timeout,
        max_age_ns=model.max_age or 3 * model.every + model.timeout,
    )


def _sources(model: SourceModel) -> dict[str, EndpointModel | PushModel]:
    found = zip(KINDS, (model.prometheus, model.metrics, model.json_, model.push), strict=True)
    return {kind: one for kind, one in found if one is not None}


def _source(model: SourceModel) -> Source | None:
    for one in _sources(model).values():
        match one:
            case PrometheusModel():
                return PrometheusQuery(endpoint=_endpoint(one), query=one.query)
            case MetricsModel():
                labels = tuple(sorted(one.labels.items()))
                return MetricLine(
                    endpoint=_endpoint(one),
                    metric=one.metric,
                    labels=labels,
                    quantile=one.quantile,
                    per=one.per,
                )
            case JsonModel():
                return JsonField(endpoint=_endpoint(one), pointer=one.pointer)
            case PushModel():
                return Push(users=tuple(int(u) if u.isdigit() else u for u in one.users))
    return None


def _endpoint(model: EndpointModel) -> Endpoint:
    return Endpoint(
        url=model.url,
        token_file=None if model.token_file is None else Path(model.token_file),
        header_files=tuple((name, Path(file)) for name, file in model.header_files.items()),
        ca_file=None if model.ca_file is None else Path(model.ca_file),
    )


def _find_conflicts(model: SourceModel) -> Iterator[tuple[Loc, str]]:
    given = _sources(model)
    if len(given) != 1:
        have = f", not {' and '.join(given)}" if given else ""
        yield (), f"must have exactly one of {', '.join(KINDS)}{have}"
    yield from _find_timing_conflicts(model, is_polled="push" not in given)
    if model.metrics is not None:
        yield from ((("metrics", *at), text) for at, text in _find_series_conflicts(model.metrics))
    for kind, one in given.items():
        if isinstance(one, EndpointModel):
            yield from (((kind, *at), text) for at, text in _find_endpoint_conflicts(one))


def _find_pod_conflicts(model: PodFiguresModel) -> Iterator[tuple[Loc, str]]:
    yield from _find_timing_conflicts(model, is_polled=True)
    yield from _find_series_conflicts(model)


def _find_timing_conflicts(model: TimingModel, *, is_polled: bool) -> Iterator[tuple[Loc, str]]:
    if model.timeout > model.every:
        yield ("timeout",), "must not be longer than 'every'"
    if model.max_age is not None and model.max_age < model.every and is_polled:
        yield ("max_age",), "must not be shorter than 'every'"


def _find_series_conflicts(model: SeriesModel) -> Iterator[tuple[Loc, str]]:
    if model.quantile is None:
        return
    if model.per is not None:
        yield ("per",), "must not be given together with quantile"
    if model.metric.endswith("_bucket"):
        yield ("metric",), "must be the name without _bucket for a quantile"
    if "le" in model.labels:
        yield ("labels",), "must not choose a bucket (le) for a quantile"


def _find_endpoint_conflicts(model: EndpointModel) -> Iterator[tuple[Loc, str]]:
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
