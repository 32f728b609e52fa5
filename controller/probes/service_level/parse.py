# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Parsers of server answers: Prometheus queries, pages of metrics, JSON documents.

NaN is valid and means that the service was idle, so there was nothing to measure. The input is
not trusted: of a long page only the candidate lines are parsed, and everything unexpected is a
``SourceError``.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
import json
import math
import re

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from controller.probes.service_level.counters import Counters
from controller.probes.service_level.histogram import Buckets
from controller.probes.service_level.ledger import Reason, SourceError

__all__ = (
    "bucket_counts",
    "counter_values",
    "json_value",
    "metric_value",
    "number",
    "printable",
    "prometheus_value",
)

_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,3})?|[Nn]a[Nn]")
_MAX_PRINTABLE = 60
# The parser of the library takes some 20 us for a usual line, which has about 100 bytes, and a time
# that grows with the square of the length for one of nothing but commas: 26 s for 1 MiB.
_MAX_CANDIDATES = 100
_MAX_BUCKETS = 1000
_MAX_LINE_BYTES = 4096
# A series, with labels that have no escapes, and its value; a time may follow.
_USUAL = re.compile(
    r"""([A-Za-z_:][A-Za-z0-9_:]*\{[^"{}\\]*(?:"[^"\\]*"[^"{}\\]*)*\})[ \t]+"""
    r"""([-+]?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|Inf)|NaN)(?:[ \t]+-?[0-9]+)?[ \t]*"""
)
_MOST_KEPT_CHARS = 512
_MISSING = object()


def number(text: str) -> float:
    """Return the decimal number *text*, NaN included.

    :raises SourceError: *text* is no number, or longer than 64 characters, or infinite.
    """
    value = float(text) if len(text) <= 64 and _NUMBER.fullmatch(text) else math.inf
    if math.isinf(value):
        raise SourceError(Reason.FORMAT, f"{printable(text)} is not a finite number")
    return value


def prometheus_value(body: bytes) -> float:
    """Return the value in an answer to ``/api/v1/query``: a scalar, or a vector of one element.

    :raises SourceError: the answer is anything else.
    """
    answer = _load(body)
    try:
        data = answer["data"]  # type: ignore[index]
        kind, result = data["resultType"], data["result"]
        if kind == "vector":
            if not result:
                raise SourceError(Reason.EMPTY, "the query found no series")
            if len(result) > 1:
                text = f"the query found {len(result)} series; wrap it in max() or sum()"
                raise SourceError(Reason.AMBIGUOUS, text)
            result = result[0]["value"]
        elif kind != "scalar":
            text = f"the query gives a {printable(kind)}, not a scalar or a vector"
            raise SourceError(Reason.FORMAT, text)
        _, text = result
    except (KeyError, TypeError, ValueError, IndexError):
        raise SourceError(Reason.FORMAT, "not the answer of a Prometheus server") from None
    if not isinstance(text, str):
        raise SourceError(Reason.FORMAT, "not the answer of a Prometheus server")
    return number(text)


def metric_value(body: bytes, metric: str, labels: Iterable[tuple[str, str]]) -> float:
    """Return the value of the series of *metric* that has all of *labels*.

    :param body: a page in the Prometheus text format.
    :raises SourceError: no series or several series match, or the lines cannot be parsed.
    """
    found = _samples(body, metric, dict(labels), _MAX_CANDIDATES)
    if not found:
        raise SourceError(Reason.EMPTY, f"no series {metric} with these labels")
    if len(found) > 1:
        raise SourceError(Reason.AMBIGUOUS, f"{len(found)} series {metric}; add labels")
    return number(repr(float(found[0].value)))


def counter_values(body: bytes, metric: str, labels: Iterable[tuple[str, str]]) -> Counters:
    """Return the values of all series of the counter *metric* that have all of *labels*.

    :param body: a page in the Prometheus text format.
    :raises SourceError: no series matches, or the lines cannot be parsed or have no counts.
    """
    counts: dict[tuple[tuple[str, str], ...], float] = {}
    for each in _samples(body, metric, dict(labels), _MAX_BUCKETS):
        count = float(each.value)
        if not 0 <= count < math.inf:
            raise SourceError(Reason.FORMAT, f"a series of {metric} without a count")
        counts[tuple(sorted(each.labels.items()))] = count
    if not counts:
        raise SourceError(Reason.EMPTY, f"no series {metric} with these labels")
    return counts


def bucket_counts(body: bytes, metric: str, labels: Iterable[tuple[str, str]]) -> Buckets:
    """Return the buckets of the histogram *metric*, of all its series that have all of *labels*.

    :param body: a page in the Prometheus text format.
    :raises SourceError: no series matches, none has a finite bound, or the lines cannot be parsed
        or have no counts.
    """
    counts: dict[tuple[tuple[str, str], ...], dict[float, float]] = {}
    for each in _samples(body, f"{metric}_bucket", dict(labels), _MAX_BUCKETS):
        others = dict(each.labels)
        try:
            bound, count = float(others.pop("le")), float(each.value)
        except (KeyError, ValueError):
            raise SourceError(Reason.FORMAT, f"a bucket of {metric} without a bound") from None
        if math.isnan(bound) or not 0 <= count < math.inf:
            raise SourceError(Reason.FORMAT, f"a bucket of {metric} without a count")
        counts.setdefault(tuple(sorted(others.items())), {})[bound] = count
    if not counts:
        raise SourceError(Reason.EMPTY, f"no histogram {metric} with these labels")
    if all(series.keys() == {math.inf} for series in counts.values()):
        # Without bounds there is no quantile. A native histogram looks so in the text format.
        text = f"{metric} has no bounds, as a native histogram; use {metric}_sum per {metric}_count"
        raise SourceError(Reason.FORMAT, text)
    return counts


def _samples(body: bytes, metric: str, labels: Mapping[str, str], most: int) -> list[Sample]:
    try:
        samples = [
            sample
            for line in _candidates(body, metric, labels, most)
            for sample in _parse_line(line.decode())
        ]
    except (ValueError, KeyError, IndexError):
        raise SourceError(Reason.FORMAT, f"cannot read the lines of {metric}") from None
    return [s for s in samples if s.name == metric and labels.items() <= (s.labels or {}).items()]


def _parse_line(line: str) -> Iterable[Sample]:
    """Return the sample of *line*, by the library; of a usual line only the series, and once.

    A page has the same series each time, and so have the pods of a service.
    """
    usual = _USUAL.fullmatch(line)
    if usual is None or len(usual[1]) > _MOST_KEPT_CHARS:
        return _parse_by_library(line)
    return [each._replace(value=float(usual[2])) for each in _parse_series(usual[1])]


@lru_cache(maxsize=2048)
def _parse_series(series: str) -> tuple[Sample, ...]:
    return _parse_by_library(f"{series} 0")


def _parse_by_library(line: str) -> tuple[Sample, ...]:
    families = text_string_to_metric_families(line)
    return tuple(sample for family in families for sample in family.samples)


def _candidates(body: bytes, metric: str, labels: Mapping[str, str], most: int) -> list[bytes]:
    """Return the lines of *body* that can be the series of *metric* with *labels*.

    :raises SourceError: they are too many, or too long, for the parser that reads them next.
    """
    pattern = rb"^%s(?=[{ \t])" % re.escape(metric).encode()
    for name, value in labels.items():
        escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        label = (re.escape(name).encode(), re.escape(f'"{escaped}"').encode())
        # The whole name of the label: code="500" is not in {xcode="500"}.
        pattern += rb"(?=.*[{,][ \t]*%s[ \t]*=[ \t]*%s)" % label
    lines: list[bytes] = []
    for found in re.finditer(pattern + b".*$", body, re.MULTILINE):
        lines.append(found[0])
        if len(lines) > most:
            text = f"more than {most} series {metric}; add labels"
            raise SourceError(Reason.AMBIGUOUS, text)
        if len(found[0]) > _MAX_LINE_BYTES:
            text = f"a line of {metric} is longer than {_MAX_LINE_BYTES >> 10} KiB"
            raise SourceError(Reason.TOO_BIG, text)
    return lines


def json_value(body: bytes, pointer: str) -> float:
    """Return the number at *pointer* (RFC 6901) in a JSON document; null is NaN.

    :raises SourceError: there is no number at *pointer*, or *body* is not JSON.
    """
    node = _load(body)
    for part in pointer.split("/")[1:]:
        node = _child(node, part.replace("~1", "/").replace("~0", "~"))
        if node is _MISSING:
            raise SourceError(Reason.EMPTY, f"nothing at {printable(pointer)}")
    if node is None:
        return math.nan
    if isinstance(node, bool) or not isinstance(node, int | float):
        raise SourceError(Reason.FORMAT, f"the value at {printable(pointer)} is not a number")
    return number(repr(node)[:65])


def printable(value: object) -> str:
    """Return untrusted text in a form that is safe to log: one line, ASCII, 60 characters."""
    text = ascii(str(value)[: _MAX_PRINTABLE + 1])
    return text if len(text) <= _MAX_PRINTABLE else text[: _MAX_PRINTABLE - 3] + "..."


def _child(node: object, key: str) -> object:
    if isinstance(node, dict):
        return node.get(key, _MISSING)
    if isinstance(node, list) and re.fullmatch("0|[1-9][0-9]{0,8}", key) and int(key) < len(node):
        return node[int(key)]
    return _MISSING


def _load(body: bytes) -> object:
    try:
        loaded: object = json.loads(body)
    except (ValueError, RecursionError):
        raise SourceError(Reason.FORMAT, "the answer is not JSON") from None
    return loaded
