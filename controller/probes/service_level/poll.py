# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Requests to service-level sources: one request, a periodic poll, one request to each source."""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable
from functools import lru_cache, partial
from random import Random
import time
from typing import Any, cast
from urllib.parse import quote, urlsplit

from controller.config.sections.service_sources import (
    Endpoint,
    JsonField,
    MetricLine,
    PrometheusQuery,
    Push,
    ServiceSource,
)
from controller.core.units import NS_PER_SEC, format_duration
from controller.probes.service_level.connection import Client
from controller.probes.service_level.counters import CounterWindow, mean
from controller.probes.service_level.fetch import FetchLoop, fetch
from controller.probes.service_level.histogram import HistogramWindow, quantile
from controller.probes.service_level.ledger import Ledger, Reason, SourceError, base_value
from controller.probes.service_level.parse import (
    bucket_counts,
    counter_values,
    json_value,
    metric_value,
    prometheus_value,
)

__all__ = ("Pace", "Windows", "fetch_all", "fetch_figure", "pause_s", "poll", "together_s")

# A page of metrics is searched line by line; JSON is parsed as a whole, which holds the
# interpreter for some 10 ms per MiB.
_MAX_PAGE_BYTES = 1 << 20
_MAX_JSON_BYTES = 256 << 10
_MAX_PAUSE_S = 60.0
_JITTER = 0.1
# Pause after a request, as a multiple of its CPU time: a source takes at most a tenth of one CPU.
_REST_RATIO = 9
# All pods of the node together take at most this part of a CPU.
_MOST_CPUS = 0.01
# Groups of pods that are asked one right after the other, in the time between two requests.
_MOMENTS = 10
# The cost of a request is known as a mean of so many.
_REMEMBERED = 50
# A figure counts for so many intervals, as in the default of ``max_age``.
_INTERVALS = 3


class Windows:
    """The last page of one source, for what is counted between two."""

    def __init__(self) -> None:
        self.histogram, self.counters = HistogramWindow(), CounterWindow()


async def fetch_figure(
    source: ServiceSource, windows: Windows | None = None, client: Client | None = None
) -> float:
    """Return the current figure in the source's unit; NaN means that the service was idle.

    :param windows: the last page, for a quantile or a mean since then. Without it these are of all
        requests since the service started.
    :param client: keeps the connection for the next request; ``None``: it is closed.
    :raises SourceError: there is no figure within the source's time-out.
    """
    try:
        async with asyncio.timeout(source.timeout_ns / NS_PER_SEC):
            match source.source:
                case PrometheusQuery(endpoint=endpoint, query=query):
                    return await _query_prometheus(endpoint, query)
                case MetricLine() as line:
                    return _metric(await _get_page(line.endpoint, client), line, windows)
                case JsonField(endpoint=endpoint, pointer=pointer):
                    return json_value(await _get_json(endpoint, _target(endpoint.url)), pointer)
                case _:
                    raise SourceError(Reason.INTERNAL, "a source that is not polled")
    except TimeoutError:
        text = f"no answer within {format_duration(source.timeout_ns)}"
        raise SourceError(Reason.TIMEOUT, text) from None


class Pace:
    """How often pods are asked: as configured, or as often as their part of a CPU allows.

    ``pods`` is their number, which the caller sets.
    """

    def __init__(self) -> None:
        self.pods = 0
        self._mean_cpu_s = 0.0

    def note(self, cpu_s: float) -> None:
        """Take the CPU time of a request."""
        self._mean_cpu_s += (cpu_s - self._mean_cpu_s) / _REMEMBERED

    def every_s(self, configured_s: float) -> float:
        """Return the time between two requests to a pod."""
        return max(configured_s, self.pods * self._mean_cpu_s / _MOST_CPUS)


async def poll(ledger: Ledger, random: Random, pace: Pace | None = None) -> None:
    """Poll the source of *ledger* forever; ends only by cancellation and raises nothing else.

    :param pace: of all pods together; ``None``: the source is no pod.
    """
    every_s = ledger.source.every_ns / NS_PER_SEC
    # Spreads the requests to sources that were configured at the same time.
    await asyncio.sleep(random.uniform(0, min(every_s, 1.0) if pace is None else every_s))
    # Pods are many, so their connections stay. A name may get another address any time.
    client = None if pace is None else Client()
    try:
        await _poll(ledger, random, pace, client)
    finally:
        if client is not None:
            client.close()


async def _poll(ledger: Ledger, random: Random, pace: Pace | None, client: Client | None) -> None:
    every_s = ledger.source.every_ns / NS_PER_SEC
    failures = 0
    windows = Windows()
    while True:
        request = _Metered(fetch_figure(ledger.source, windows, client))
        try:
            ledger.answered(await request, time.monotonic_ns())
            failures = 0
        except SourceError as error:
            failures += 1
            ledger.failed(error)
        except Exception as error:  # a failure of one source must not end the others
            failures += 1
            ledger.failed(SourceError(Reason.INTERNAL, f"{type(error).__name__}: {error}"))
        # A server chooses how much work its answer is, for example by chunks of one byte.
        rest_s = _REST_RATIO * request.cpu_s
        if pace is not None:
            pace.note(request.cpu_s)
            every_s = pace.every_s(ledger.source.every_ns / NS_PER_SEC)
            lasts_ns = _INTERVALS * round(every_s * NS_PER_SEC) + ledger.source.timeout_ns
            ledger.max_age_ns = max(ledger.source.max_age_ns, lasts_ns)
        wait_s = pause_s(every_s, failures, random)
        if pace is not None:
            wait_s = together_s(wait_s, ledger.source.every_ns / NS_PER_SEC, time.monotonic())
        await asyncio.sleep(max(rest_s, wait_s))


class _Metered:
    """A coroutine to await; ``cpu_s`` is its CPU time, without that of other tasks meanwhile."""

    def __init__(self, coroutine: Coroutine[Any, Any, float]) -> None:
        self._coroutine = coroutine
        self.cpu_s = 0.0

    def __await__(self) -> Generator[Any, Any, float]:
        step: Callable[[], Any] = partial(self._coroutine.send, None)
        while True:
            began_s = time.thread_time()
            try:
                awaited = step()
            except StopIteration as end:
                return cast(float, end.value)
            finally:
                self.cpu_s += time.thread_time() - began_s
            try:
                yield awaited
                step = partial(self._coroutine.send, None)
            except BaseException as error:  # such as the cancellation by a time-out
                step = partial(self._coroutine.throw, error)


def fetch_all(sources: Iterable[ServiceSource]) -> list[tuple[ServiceSource, str | SourceError]]:
    """Poll each of *sources* once, all at the same time; return a text or an error for each."""

    async def fetch_one(source: ServiceSource) -> str | SourceError:
        if isinstance(source.source, Push):
            return "a push source, not polled"
        try:
            value = base_value(source, await fetch_figure(source))
        except SourceError as error:
            return error
        if value is None:
            return "idle"
        return f"{value:g}" if source.unit_ns is None else format_duration(value)

    async def gather() -> list[str | SourceError]:
        return await asyncio.gather(*map(fetch_one, listed))

    listed = list(sources)
    loop = FetchLoop()
    try:
        return list(zip(listed, loop.run_until_complete(gather()), strict=True))
    finally:
        loop.close()


def pause_s(every_s: float, failures: int, random: Random) -> float:
    """Return the pause in seconds before the next request.

    It doubles with each of *failures* in a row up to 60 s, or *every_s* if that is longer, with
    a jitter of 10 %.
    """
    pause = min(every_s * 2.0 ** min(failures, 10), max(every_s, _MAX_PAUSE_S))
    return pause * random.uniform(1 - _JITTER, 1 + _JITTER)


def together_s(pause_s: float, every_s: float, now_s: float) -> float:
    """Return *pause_s* with its end moved to the next or last one of ten moments in *every_s*.

    So the pods are asked in groups. The first one of a group brings the code into the caches of the
    CPU, and the others take half of its CPU time.
    """
    step_s = every_s / _MOMENTS
    return round((now_s + pause_s) / step_s) * step_s - now_s


async def _query_prometheus(endpoint: Endpoint, query: str) -> float:
    path = urlsplit(endpoint.url).path.rstrip("/")
    target = f"{path}/api/v1/query?query={quote(query, safe='')}"
    return prometheus_value(await _get_json(endpoint, target))


async def _get_page(endpoint: Endpoint, client: Client | None) -> bytes:
    target = _target(endpoint.url)
    limit = _MAX_PAGE_BYTES
    return await fetch(endpoint, target, accept="text/plain", limit=limit, client=client)


def _metric(page: bytes, line: MetricLine, windows: Windows | None) -> float:
    if line.quantile is not None:
        counts = bucket_counts(page, line.metric, line.labels)
        if windows is None:
            return quantile(counts.values(), line.quantile)
        return windows.histogram.update(counts, line.quantile)
    if line.per is not None:
        total = counter_values(page, line.metric, line.labels)
        events = counter_values(page, line.per, line.labels)
        if windows is None:
            return mean(sum(total.values()), sum(events.values()))
        return windows.counters.update(total, events)
    return metric_value(page, line.metric, line.labels)


async def _get_json(endpoint: Endpoint, target: str) -> bytes:
    return await fetch(endpoint, target, accept="application/json", limit=_MAX_JSON_BYTES)


@lru_cache(maxsize=600)
def _target(address: str) -> str:
    url = urlsplit(address)
    return (url.path or "/") + (f"?{url.query}" if url.query else "")
