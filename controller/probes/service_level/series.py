# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Series of one metric on a page in the text format of Prometheus.

The library's parser reads each series once. From then on a page of the same series is cut at its
counts, without an object per line. Lines of other metrics are not looked at.
"""

from collections.abc import Iterable
from functools import lru_cache
import re

from prometheus_client.parser import text_string_to_metric_families

from controller.probes.service_level.ledger import Reason, SourceError

__all__ = ("MOST_KEPT", "Labels", "samples")

# The parser of the library takes some 20 us for a usual line, which has about 100 bytes, and a time
# that grows with the square of the length for one of nothing but commas: 26 s for 1 MiB.
_MAX_LINE_BYTES = 4096
# A series, with labels that have no escapes, and its value; a time may follow.
_SERIES = re.compile(rb"""[A-Za-z_:][A-Za-z0-9_:]*\{[^"{}\\]*(?:"[^"\\]*"[^"{}\\]*)*\}""")
_USUAL = re.compile(
    rb"(%s)[ \t]+([-+]?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|Inf)|NaN)"
    rb"(?:[ \t]+-?[0-9]+)?[ \t]*" % _SERIES.pattern
)
# 20 buckets of 200 pods that all have labels of their own, and as many again.
MOST_KEPT = 8192
_MOST_KEPT_BYTES = 512
# What most lines of a histogram end with.
_COUNT = re.compile(rb" ([0-9]{1,20})(?=\n|\Z)")
# Of a block that is kept. Two for each of 110 pods, with the series above, are 9 MiB at most,
# whatever the pods answer.
_MOST_BLOCK_BYTES, _MOST_BLOCK_LINES = 8 << 10, 64

# Name and value of each label, in order of the names.
Labels = tuple[tuple[str, str], ...]
_Sample = tuple[str, Labels, float]


def samples(body: bytes, metric: str, labels: Labels, most: int) -> list[tuple[Labels, float]]:
    """Return labels, in their order, and value of the series of *metric* that have *labels*.

    :param most: so many of them are parsed.
    :raises SourceError: they are more, too long, or cannot be parsed.
    """
    block = _block(body, metric)
    try:
        known = _known(block, metric, labels, most)
        if known is not None:
            return known
        read = [
            sample
            for line in _candidates(block, metric, labels, most)
            for sample in _parse_line(line)
        ]
    except (ValueError, KeyError, IndexError):
        raise SourceError(Reason.FORMAT, f"cannot read the lines of {metric}") from None
    wanted = set(labels)
    return [(found, value) for name, found, value in read if name == metric and wanted <= {*found}]


def _block(body: bytes, metric: str) -> bytes:
    """Return the part of *body* from the first to the last line that begins with *metric*.

    Each line has its newline before it. A search for bytes is ten times faster than one for a
    pattern, and the lines of a metric are next to each other.
    """
    body = b"\n" + body
    begin = b"\n" + metric.encode()
    first = body.find(begin)
    if first < 0:
        return b""
    end = body.find(b"\n", body.rfind(begin) + 1)
    return body[first:] if end < 0 else body[first:end]


def _known(
    block: bytes, metric: str, labels: Labels, most: int
) -> list[tuple[Labels, float]] | None:
    """Return the samples of a usual *block*: the series of the last page, each with a count."""
    if len(block) > _MOST_BLOCK_BYTES:
        return None
    # A series, its count, and so on; nothing is left if all lines are so.
    *parts, left = _COUNT.split(block)
    if left or not 0 < len(parts) <= 2 * _MOST_BLOCK_LINES:
        return None
    series = _parse_block(tuple(parts[::2]), metric, labels)
    if series is None or len(series) > most:
        return None
    return [
        (found, float(count))
        for found, count in zip(series, parts[1::2], strict=True)
        if found is not None
    ]


@lru_cache(maxsize=220)
def _parse_block(
    lines: tuple[bytes, ...], metric: str, labels: Labels
) -> tuple[Labels | None, ...] | None:
    """Return the labels of each of *lines*, ``None`` of another series; ``None``: not usual."""
    pattern, wanted = _pattern(metric, labels), set(labels)
    found: list[Labels | None] = []
    for line in lines:
        if line.rfind(b"\n"):  # also a line without a count
            return None
        if pattern.fullmatch(line + b" ") is None:  # as before its count
            found.append(None)
            continue
        series = _parse_series(line[1:]) if len(line) <= _MOST_KEPT_BYTES else None
        if series is None:
            return None
        ((name, own),) = series
        found.append(own if name == metric and wanted <= {*own} else None)
    return tuple(found)


def _parse_line(line: bytes) -> Iterable[_Sample]:
    """Return the samples of *line*, by the library; of a usual line only the series, and once.

    A page has the same series each time, and so have the pods of a service.
    """
    series, _, count = line.rpartition(b" ")
    if not (series.endswith(b"}") and count.isdigit()):  # as nearly all lines of a histogram
        usual = _USUAL.fullmatch(line)
        series, count = (b"", b"") if usual is None else usual.groups()
    known = _parse_series(series) if 0 < len(series) <= _MOST_KEPT_BYTES else None
    if known is None:
        return _parse_by_library(line)
    value = float(count)
    return [(name, labels, value) for name, labels in known]


@lru_cache(maxsize=MOST_KEPT)
def _parse_series(series: bytes) -> tuple[tuple[str, Labels], ...] | None:
    """Return name and labels of *series*; ``None`` if it is not a usual one."""
    if _SERIES.fullmatch(series) is None:
        return None
    return tuple((name, labels) for name, labels, _ in _parse_by_library(series + b" 0"))


def _parse_by_library(line: bytes) -> Iterable[_Sample]:
    return [
        (each.name, tuple(sorted((each.labels or {}).items())), float(each.value))
        for family in text_string_to_metric_families(line.decode())
        for each in family.samples
    ]


def _candidates(block: bytes, metric: str, labels: Labels, most: int) -> list[bytes]:
    """Return the lines of *block* that can be the series of *metric* with *labels*.

    :raises SourceError: they are too many, or too long, for the parser that reads them next.
    """
    lines: list[bytes] = []
    for found in _pattern(metric, labels).finditer(block):
        lines.append(found[1])
        if len(lines) > most:
            text = f"more than {most} series {metric}; add labels"
            raise SourceError(Reason.AMBIGUOUS, text)
        if len(found[1]) > _MAX_LINE_BYTES:
            text = f"a line of {metric} is longer than {_MAX_LINE_BYTES >> 10} KiB"
            raise SourceError(Reason.TOO_BIG, text)
    return lines


@lru_cache(maxsize=256)
def _pattern(metric: str, labels: Labels) -> re.Pattern[bytes]:
    pattern = rb"\n(%s(?=[{ \t])" % re.escape(metric).encode()
    for name, value in labels:
        escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        label = (re.escape(name).encode(), re.escape(f'"{escaped}"').encode())
        # The whole name of the label: code="500" is not in {xcode="500"}.
        pattern += rb"(?=.*[{,][ \t]*%s[ \t]*=[ \t]*%s)" % label
    return re.compile(pattern + b".*)")
