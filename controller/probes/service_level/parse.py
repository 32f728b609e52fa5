# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Parsers of server answers: Prometheus queries, pages of metrics, JSON documents.

NaN is valid and means that the service was idle, so there was nothing to measure. The input is
not trusted: of a long page only the candidate lines are parsed, and everything unexpected is a
``SourceError``.
"""

from collections.abc import Iterable
from functools import lru_cache
import json
import math
import re

from controller.probes.service_level.counters import Counters
from controller.probes.service_level.histogram import Buckets
from controller.probes.service_level.ledger import Reason, SourceError
from controller.probes.service_level.series import MOST_KEPT, Labels, samples

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
_MAX_CANDIDATES = 100
_MAX_BUCKETS = 1000
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
    found = samples(body, metric, tuple(labels), _MAX_CANDIDATES)
    if not found:
        raise SourceError(Reason.EMPTY, f"no series {metric} with these labels")
    if len(found) > 1:
        raise SourceError(Reason.AMBIGUOUS, f"{len(found)} series {metric}; add labels")
    _, value = found[0]
    return number(repr(value))


def counter_values(body: bytes, metric: str, labels: Iterable[tuple[str, str]]) -> Counters:
    """Return the values of all series of the counter *metric* that have all of *labels*.

    :param body: a page in the Prometheus text format.
    :raises SourceError: no series matches, or the lines cannot be parsed or have no counts.
    """
    counts: dict[Labels, float] = {}
    for found, count in samples(body, metric, tuple(labels), _MAX_BUCKETS):
        if not 0 <= count < math.inf:
            raise SourceError(Reason.FORMAT, f"a series of {metric} without a count")
        counts[found] = count
    if not counts:
        raise SourceError(Reason.EMPTY, f"no series {metric} with these labels")
    return counts


def bucket_counts(body: bytes, metric: str, labels: Iterable[tuple[str, str]]) -> Buckets:
    """Return the buckets of the histogram *metric*, of all its series that have all of *labels*.

    :param body: a page in the Prometheus text format.
    :raises SourceError: no series matches, none has a finite bound, or the lines cannot be parsed
        or have no counts.
    """
    counts: dict[Labels, dict[float, float]] = {}
    for found, count in samples(body, f"{metric}_bucket", tuple(labels), _MAX_BUCKETS):
        try:
            others, bound = _bucket(found)
        except (KeyError, ValueError):
            raise SourceError(Reason.FORMAT, f"a bucket of {metric} without a bound") from None
        if math.isnan(bound) or not 0 <= count < math.inf:
            raise SourceError(Reason.FORMAT, f"a bucket of {metric} without a count")
        counts.setdefault(others, {})[bound] = count
    if not counts:
        raise SourceError(Reason.EMPTY, f"no histogram {metric} with these labels")
    if all(series.keys() == {math.inf} for series in counts.values()):
        # Without bounds there is no quantile. A native histogram looks so in the text format.
        text = f"{metric} has no bounds, as a native histogram; use {metric}_sum per {metric}_count"
        raise SourceError(Reason.FORMAT, text)
    return counts


@lru_cache(maxsize=MOST_KEPT)
def _bucket(labels: Labels) -> tuple[Labels, float]:
    """Return *labels* without the bound, and the bound."""
    others = dict(labels)
    bound = float(others.pop("le"))
    return tuple(others.items()), bound


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
