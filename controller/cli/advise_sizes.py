# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The part of ``sweetpoint advise`` about requests, limits and overcommit."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict

from controller.agent.history.sizes import LEAST_NS, Advised, Amounts, ServiceUses, advised
from controller.cli.advise_limits import InnerLimit, PresentLimits
from controller.cli.explain_text import lasted
from controller.core.units import format_bytes, format_cpus
from controller.kube.capacity import Forecast, ForecastRecord
from controller.workloads.pods.containers import shown_container

__all__ = ("forecast_lines", "plain_forecast", "plain_sizes", "size_lines")

_DAY_NS = 24 * 3600 * 10**9


def plain_sizes(uses: ServiceUses, limits: Mapping[str, PresentLimits]) -> list[dict[str, object]]:
    """Return what ``size_lines`` says, for programs."""
    found: list[dict[str, object]] = []
    requests = {name: each._asdict() for name, each in uses.requests.items()}
    for name, use in sorted(uses.services.items()):
        now = limits.get(name)
        fits = advised(use, None if now is None else now.in_force)
        found.append(
            {
                "service": name,
                "observed_ns": use.observed_ns,
                "least_observed_ns": LEAST_NS,
                "requests_now": requests.get(name),
                "limits_now": None if now is None else now.own._asdict(),
                "container_limits_now": None if now is None else _plain_inner(now),
                "advised": None if fits is None else asdict(fits),
            }
        )
    return found


def _plain_inner(limits: PresentLimits) -> dict[str, object]:
    cpu, memory = limits.inner_cpu, limits.inner_memory
    return {
        "cpus": None if cpu is None else cpu.limit,
        "cpus_of": None if cpu is None else cpu.name,
        "memory_bytes": None if memory is None else round(memory.limit),
        "memory_of": None if memory is None else memory.name,
    }


def size_lines(uses: ServiceUses, limits: Mapping[str, PresentLimits]) -> Iterator[str]:
    """Yield the requests and limits of each service with their evidence, by name."""
    requests = uses.requests
    for name, use in sorted(uses.services.items()):
        now = limits.get(name)
        fits = advised(use, None if now is None else now.in_force)
        yield ""
        if fits is None:
            yield (
                f"{name}: requests and limits N/A. It was measured for "
                f"{lasted(use.observed_ns)}, and {lasted(LEAST_NS)} is the least."
            )
            continue
        yield f"{name}: requests and limits of one workload, from {lasted(use.observed_ns)}"
        yield from _of_cpu(fits, requests.get(name), now)
        yield from _of_memory(fits, requests.get(name), now)


def _of_cpu(fits: Advised, requests: Amounts | None, limits: PresentLimits | None) -> Iterator[str]:
    request, wanted = "N/A" if requests is None else _cpus(requests), fits.cpu_request_cpus
    yield (
        f"    cpu request     {format_cpus(wanted)}, now {request}: for 95% of the time it used no "
        f"more; its peak was {format_cpus(fits.peak_cpus)}"
    )
    if fits.throttled_ratio is None:
        yield "    cpu limit       N/A: whether it was throttled was not measured"
        return
    limit, enough = "N/A", "none is needed"
    if limits is not None:
        limit = _cpus(limits.own) + _inner(limits.inner_cpu, format_cpus)
    if fits.cpu_limit_cpus is not None:
        enough = f"{format_cpus(fits.cpu_limit_cpus)} or none"
    throttled = f"it was throttled for {fits.throttled_ratio:.1%} of its time"
    yield f"    cpu limit       {enough}, now {limit}: {throttled}"


def _of_memory(
    fits: Advised, requests: Amounts | None, limits: PresentLimits | None
) -> Iterator[str]:
    wanted, enough = fits.memory_request_bytes, fits.memory_limit_bytes
    if wanted is None or enough is None:
        yield "    memory          N/A: it was not measured"
        return
    request = "N/A" if requests is None else _memory(requests)
    limit = "N/A"
    if limits is not None:
        limit = _memory(limits.own) + _inner(limits.inner_memory, format_bytes)
    yield f"    memory request  {format_bytes(wanted)}, now {request}: its peak"
    yield (
        f"    memory limit    {format_bytes(enough)}, now {limit}: a fifth above its peak"
        f"{_distance(fits, limits)}"
    )


def _cpus(amounts: Amounts) -> str:
    return "none" if amounts.cpus is None else format_cpus(amounts.cpus)


def _memory(amounts: Amounts) -> str:
    return "none" if amounts.memory_bytes is None else format_bytes(amounts.memory_bytes)


def _inner(found: InnerLimit | None, shown: Callable[[float], str]) -> str:
    return "" if found is None else f", but {shown(found.limit)} in {shown_container(found.name)}"


def _distance(fits: Advised, now: PresentLimits | None) -> str:
    """Return how near its peak came to its limit; empty where nothing is known about that."""
    text, distance_bytes = "", fits.oom_distance_bytes
    if distance_bytes is not None and distance_bytes < 0:
        text = f"; its peak was {format_bytes(-distance_bytes)} above its limit of now"
    elif distance_bytes is not None and now is not None and now.own.memory_bytes:
        part = distance_bytes / now.own.memory_bytes
        text = f"; its peak left {format_bytes(distance_bytes)} ({part:.0%}) of its limit"
    hits = fits.memory_limit_hits
    return f"{text}; it reached its limit {hits:,} times" if hits else text


def plain_forecast(record: ForecastRecord, wall_ns: int) -> dict[str, object]:
    """Return what ``forecast_lines`` says of a resource at *wall_ns*, for programs."""
    soon_ratio, day_ratio = _expected(record, wall_ns)
    return {
        "hours": record.hours,
        "judged": record.judged,
        "broken": record.broken,
        "expected_use_ratio": soon_ratio,
        "expected_use_day_ratio": day_ratio,
    }


def forecast_lines(records: Mapping[str, ForecastRecord], wall_ns: int) -> Iterator[str]:
    """Yield for each resource what overcommit is safe, and how often its forecast was broken."""
    if not records:
        yield ""
        yield (
            "Overcommit: N/A. There is no forecast: a node of Kubernetes makes one with "
            "kubernetes.capacity.forecast."
        )
    for kind, each in records.items():
        part = f"{each.broken / each.judged:.0%}" if each.judged else "N/A"
        broken = f"{each.broken} of {each.judged} hours ({part})"
        yield ""
        yield f"Capacity: other work used more {kind} than forecast and reserve in {broken}."
        soon_ratio, day_ratio = _expected(each, wall_ns)
        if soon_ratio is None:
            yield f"Overcommit of {kind}: N/A. No day had this hour yet."
            continue
        day = f", in the next 24h up to {day_ratio:.0%}" if day_ratio is not None else ""
        yield (
            f"Overcommit of {kind}: other work is expected to use up to {soon_ratio:.0%} of the "
            f"node in the next half hour{day}. Best-effort work can have the rest less the "
            "reserve."
        )


def _expected(record: ForecastRecord, wall_ns: int) -> tuple[float | None, float | None]:
    """Return the expected use in the next half hour and in the next day, as parts of the node."""
    forecast = Forecast(0.0, record)
    soon, day = forecast.expected(wall_ns), forecast.expected(wall_ns, _DAY_NS)
    return (
        None if soon is None else soon.use_ratio,
        None if day is None else day.use_ratio,
    )
