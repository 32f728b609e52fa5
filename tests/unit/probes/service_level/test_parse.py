# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Parsing of server answers, also of invalid and hostile ones."""

import asyncio
from collections.abc import Iterator
import json
import math
from random import Random
import time
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
import pytest

from controller.config.sections.service_sources import Push, ServiceSource
from controller.core.units import NS_PER_MS, NS_PER_SEC
from controller.probes.service_level import series
from controller.probes.service_level.ledger import Ledger, Reason, SourceError
from controller.probes.service_level.parse import (
    json_value,
    metric_value,
    printable,
    prometheus_value,
)
from controller.probes.service_level.poll import pause_s, poll

PAGE = b"""\
# HELP request_seconds Time of requests.
# TYPE request_seconds summary
request_seconds{quantile="0.5",route="/"} 0.001
request_seconds{quantile="0.99",route="/"} 0.25
request_seconds{quantile="0.99",route="/a\\"b"} 0.5 1700000000000
request_seconds_sum{route="/"} 12
request_seconds_count{route="/"} 100
# TYPE queue gauge
queue 17
# TYPE idle gauge
idle NaN
full +Inf
broken{a="b" 3
"""


def vector(*values: object) -> bytes:
    result = [{"metric": {}, "value": [1700000000.5, value]} for value in values]
    return json.dumps(
        {"status": "success", "data": {"resultType": "vector", "result": result}}
    ).encode()


def reason_of(error: pytest.ExceptionInfo[SourceError]) -> str:
    return error.value.reason


def test_prometheus_answers_with_a_vector_of_one_or_a_scalar() -> None:
    assert prometheus_value(vector("0.0125")) == 0.0125
    scalar = b'{"status":"success","data":{"resultType":"scalar","result":[1700000000,"3e-3"]}}'
    assert prometheus_value(scalar) == 0.003
    assert math.isnan(prometheus_value(vector("NaN")))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (vector(), "empty"),
        (vector("1", "2"), "ambiguous"),
        (vector("+Inf"), "format"),
        (vector("1_000"), "format"),
        (vector(5), "format"),
        (vector("1" * 100), "format"),
        (b'{"status":"success","data":{"resultType":"matrix","result":[]}}', "format"),
        (b'{"status":"success","data":[]}', "format"),
        (b'{"status":"success","data":{"resultType":"vector","result":5}}', "format"),
        (b"[" * 200_000, "format"),
        (b"\xff\xfe", "format"),
        (b"", "format"),
    ],
)
def test_an_invalid_answer_of_prometheus_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(SourceError) as error:
        prometheus_value(body)
    assert reason_of(error) == reason


def test_a_series_is_found_by_name_and_labels() -> None:
    assert metric_value(PAGE, "queue", ()) == 17
    assert metric_value(PAGE, "request_seconds", [("quantile", "0.5")]) == 0.001
    assert metric_value(PAGE, "request_seconds", [("quantile", "0.99"), ("route", "/")]) == 0.25
    assert metric_value(PAGE, "request_seconds", [("route", '/a"b')]) == 0.5
    assert metric_value(PAGE, "request_seconds_count", ()) == 100
    assert math.isnan(metric_value(PAGE, "idle", ()))


@pytest.mark.parametrize(
    ("metric", "labels", "reason"),
    [
        ("request_seconds", [("quantile", "0.99")], "ambiguous"),
        ("request_seconds", [("quantile", "0.9")], "empty"),
        ("request_second", [], "empty"),
        ("queue", [("route", "/")], "empty"),
        ("full", [], "format"),
        ("broken", [], "format"),
    ],
)
def test_a_page_without_exactly_one_matching_series(
    metric: str, labels: list[tuple[str, str]], reason: str
) -> None:
    with pytest.raises(SourceError) as error:
        metric_value(PAGE, metric, labels)
    assert reason_of(error) == reason


LABELS = [("code", "500"), ("route", "/")]


@pytest.mark.parametrize(
    "line",
    [
        'm{code="500",route="/"} 3',
        'm{route="/",code="500",} 3',
        'm{ zone="b" , code = "500" ,\troute="/"} 3',
    ],
)
def test_labels_are_found_in_any_place(line: str) -> None:
    assert metric_value(f'm{{xcode="500",route="/"}} 4\n{line}\n'.encode(), "m", LABELS) == 3


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that reach the parser of the library, which takes most of the time."""
    lines: list[str] = []
    series._parse_series.cache_clear()
    series._parse_block.cache_clear()

    def parse(text: str) -> Iterator[Metric]:
        lines.extend(text.splitlines())
        yield from text_string_to_metric_families(text)

    monkeypatch.setattr(
        "controller.probes.service_level.series.text_string_to_metric_families", parse
    )
    return lines


def test_other_labels_with_the_same_end_are_not_parsed(parsed: list[str]) -> None:
    others = [b'm{xcode="500",route="/"} %d' % each for each in range(80_000)]
    page = b"\n".join([*others, b'm{code="500",route="/"} 3'])
    assert metric_value(page, "m", LABELS) == 3
    assert parsed == ['m{code="500",route="/"} 0']  # its value is read apart


MANY = b'm{code="500"} 3\n' * 50_000


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b'm{code="500"} 3', 3.0),
        (b'm{code="500", } 3.5e2 1700000000000 ', 350.0),
        (b'm{code="500",x="a}b{"} -.5', -0.5),
        (b'm{code="500",x="a\\"b"} 7', 7.0),
        (b'm{ code="500" }\t+2', 2.0),
        (b'm{code="500"} 0x10', None),
        (b'm{code="500"} 1_0', None),
        (b'm{code="500"} 3 x', None),
    ],
)
def test_a_line_is_read_as_the_library_reads_it(line: bytes, value: float | None) -> None:
    """Twice: the second time its series is known already."""
    for _ in range(2):
        if value is None:
            with pytest.raises(SourceError):
                metric_value(line, "m", [("code", "500")])
        else:
            assert metric_value(line, "m", [("code", "500")]) == value
            assert (
                next(iter(next(iter(text_string_to_metric_families(line.decode()))).samples))[2]
                == value
            )


def test_many_matching_series_are_ambiguous_before_they_are_parsed(parsed: list[str]) -> None:
    with pytest.raises(SourceError, match=r"more than 100 series m; add labels") as error:
        metric_value(MANY, "m", [("code", "500")])
    assert reason_of(error) == "ambiguous"
    assert parsed == []


def long_line(filler: bytes) -> bytes:
    return b'm{code="500",' + filler * ((1 << 19) // len(filler)) + b"} 1\n"


FILLERS = (b", ", b'c="d",', b"\\\\", b" ", b"{")


@pytest.mark.parametrize("filler", FILLERS)
def test_a_long_line_is_refused_before_it_is_parsed(filler: bytes, parsed: list[str]) -> None:
    with pytest.raises(SourceError, match="a line of m is longer than 4 KiB") as error:
        metric_value(long_line(filler), "m", [("code", "500")])
    assert reason_of(error) == "too-big"
    assert parsed == []


@pytest.mark.timed
@pytest.mark.parametrize("page", [MANY, *map(long_line, FILLERS)])
def test_a_hostile_page_takes_little_time(page: bytes) -> None:
    began_s = time.thread_time()
    with pytest.raises(SourceError):
        metric_value(page, "m", [("code", "500")])
    assert time.thread_time() - began_s < 0.3


DOCUMENT = json.dumps(
    {"latency": {"p99": 12.5, "none": None}, "list": [{"v": 1}, 2], "a/b~c": 3, "yes": True}
).encode()


@pytest.mark.parametrize(
    ("pointer", "value"),
    [("/latency/p99", 12.5), ("/list/0/v", 1), ("/list/1", 2), ("/a~1b~0c", 3)],
)
def test_a_pointer_finds_a_number(pointer: str, value: float) -> None:
    assert json_value(DOCUMENT, pointer) == value


def test_null_is_nan_the_service_was_idle() -> None:
    assert math.isnan(json_value(DOCUMENT, "/latency/none"))


@pytest.mark.parametrize(
    ("pointer", "reason"),
    [
        ("/latency/p98", "empty"),
        ("/list/2", "empty"),
        ("/list/-1", "empty"),
        ("/list/01", "empty"),
        ("/latency/p99/x", "empty"),
        ("/latency", "format"),
        ("/yes", "format"),
        ("", "format"),
    ],
)
def test_a_pointer_to_no_number(pointer: str, reason: str) -> None:
    with pytest.raises(SourceError) as error:
        json_value(DOCUMENT, pointer)
    assert reason_of(error) == reason


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 300, "Infinity"])
def test_infinite_numbers_are_refused(number: str) -> None:
    with pytest.raises(SourceError):
        json_value(f'{{"a": {number}}}'.encode(), "/a")


@given(st.binary(max_size=200), st.sampled_from(["", "/a", "/0/b"]))
def test_garbage_is_a_number_or_a_source_error(body: bytes, pointer: str) -> None:
    for read in (
        prometheus_value,
        lambda b: json_value(b, pointer),
        lambda b: metric_value(b"m " + b, "m", ()),
    ):
        try:
            assert not math.isinf(read(body))
        except SourceError as error:
            assert "\n" not in str(error)


@given(st.text())
def test_printable_text_is_one_short_line(text: str) -> None:
    line = printable(text)
    assert len(line) <= 60
    assert line.isascii() and line.isprintable()


def test_a_source_rests_nine_times_its_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    cpu_s = 0.0

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            raise asyncio.CancelledError

    async def fetch_figure(*_: object) -> float:
        nonlocal cpu_s
        cpu_s += 0.05
        if len(pauses) == 2:
            raise SourceError(Reason.EMPTY, "nothing")
        return 1

    monkeypatch.setattr("controller.probes.service_level.poll.fetch_figure", fetch_figure)
    clock = SimpleNamespace(thread_time=lambda: cpu_s, monotonic_ns=time.monotonic_ns)
    monkeypatch.setattr("controller.probes.service_level.poll.time", clock)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    every = ServiceSource(
        service="web",
        source=Push(users=()),
        unit_ns=None,
        every_ns=NS_PER_MS,
        timeout_ns=NS_PER_SEC,
        max_age_ns=NS_PER_SEC,
    )
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(poll(Ledger(every), Random(1)))
    # The first one spreads sources.
    assert pauses[1:] == pytest.approx([0.45] * 3)


def test_the_pause_doubles_up_to_a_minute() -> None:
    random = Random(1)
    pauses = [pause_s(5, failures, random) for failures in range(40)]
    for failures, pause in enumerate(pauses):
        middle = min(5 * 2**failures, 60)
        assert 0.9 * middle <= pause <= 1.1 * middle
    assert 81 <= pause_s(90, 3, random) <= 99  # never shorter than without failures
    assert len(set(pauses)) == len(pauses)
