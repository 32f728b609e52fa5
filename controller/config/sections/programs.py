# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Programs whose page of metrics has their own latency: where it is, and under which name.

A figure must follow what happened in the last seconds. So a program has an entry if its page has a
histogram, or counters of time and events, or an average of recent requests. Left out:

- open source nginx and memcached: the pages of their exporters have no time;
- quantiles since the start of the program, as of redis;
- Caddy: each handler of a request counts, so there is no series without a choice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import PydanticCustomError

from controller.host.names import did_you_mean

__all__ = ("PROGRAMS", "Program", "known_program")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A page at ``port`` and ``path``, and on it ``metric`` as in ``service_level``."""

    metric: str
    port: int | None = None
    path: str = "/metrics"
    quantile: float | None = None
    per: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    unit: str = "s"

    @property
    def page(self) -> dict[str, Any]:
        """The keys of ``service_level.pods`` that say where the page is."""
        return {"path": self.path} | ({} if self.port is None else {"port": self.port})

    @property
    def url(self) -> dict[str, str]:
        """The key of a page on this host."""
        return {} if self.port is None else {"url": f"http://127.0.0.1:{self.port}{self.path}"}

    @property
    def series(self) -> dict[str, Any]:
        """The keys of ``service_level`` that choose the series."""
        given = {"quantile": self.quantile, "per": self.per, "labels": dict(self.labels)}
        return {"metric": self.metric} | {key: value for key, value in given.items() if value}


_P99 = 0.99
# Names and units as in the source or the documentation of each program, ports too, but for Envoy,
# HAProxy and Traefik: theirs are only usual. No port: the page is on a port of the application.
PROGRAMS: Mapping[str, Program] = {
    "envoy": Program(
        port=9901,
        path="/stats/prometheus",
        metric="envoy_http_downstream_rq_time",
        quantile=_P99,
        unit="ms",
    ),
    "grpc-go": Program(
        metric="grpc_server_handling_seconds", quantile=_P99, labels={"grpc_type": "unary"}
    ),
    "grpc-python": Program(
        metric="grpc_server_handling_seconds", quantile=_P99, labels={"grpc_type": "UNARY"}
    ),
    "haproxy": Program(port=8404, metric="haproxy_backend_response_time_average_seconds"),
    "ingress-nginx": Program(
        port=10254, metric="nginx_ingress_controller_request_duration_seconds", quantile=_P99
    ),
    "istio": Program(
        port=15020,
        path="/stats/prometheus",
        metric="istio_request_duration_milliseconds",
        quantile=_P99,
        labels={"reporter": "destination"},
        unit="ms",
    ),
    "llama-cpp": Program(
        port=8080,
        metric="llamacpp:tokens_predicted_seconds_total",
        per="llamacpp:tokens_predicted_total",
    ),
    "nginx-vts": Program(
        path="/status/format/prometheus",
        metric="nginx_vts_server_request_seconds",
        labels={"host": "*"},
    ),
    "postgres": Program(
        port=9187, metric="pg_stat_statements_seconds_total", per="pg_stat_statements_calls_total"
    ),
    "redis": Program(
        port=9121, metric="redis_commands_duration_seconds_total", per="redis_commands_total"
    ),
    "sglang": Program(port=30000, metric="sglang:inter_token_latency_seconds", quantile=_P99),
    "spring": Program(
        port=8080,
        path="/actuator/prometheus",
        metric="http_server_requests_seconds_sum",
        per="http_server_requests_seconds_count",
    ),
    "tgi": Program(port=3000, metric="tgi_request_mean_time_per_token_duration", quantile=_P99),
    "traefik": Program(
        port=8080,
        metric="traefik_service_request_duration_seconds_sum",
        per="traefik_service_request_duration_seconds_count",
    ),
    "triton": Program(
        port=8002,
        metric="nv_inference_request_duration_us",
        per="nv_inference_request_success",
        unit="us",
    ),
    "vllm": Program(port=8000, metric="vllm:inter_token_latency_seconds", quantile=_P99),
}


def known_program(given: Mapping[Any, Any]) -> Program | None:
    """Return the program that the keys *given* name, ``None`` without a name.

    :raises PydanticCustomError: there is no such program.
    """
    name = given.get("program")
    if name is None:
        return None
    if isinstance(name, str) and name in PROGRAMS:
        return PROGRAMS[name]
    hint = did_you_mean(str(name), PROGRAMS, most=1) or f"known: {', '.join(sorted(PROGRAMS))}"
    text = "program: unknown program ({hint})"
    raise PydanticCustomError("program", text, {"hint": hint})
