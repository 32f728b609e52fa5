# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""An answer is the same however its bytes come; garbage is an error and never another page."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.probes.service_level.answer import Incoming, read_answer
from controller.probes.service_level.ledger import SourceError
from tests.support.http.raw_server import CHUNKED, ok

BODY = b"load 1.5\n# \r\n\r\n 0\r\n\n"
CHUNKS = CHUNKED + b"4;x=y\r\n%b\r\n%x\r\n%b\r\n0\r\nTrailer: z\r\n\r\n"
ANSWERS = {
    "length": (ok(BODY), True),
    "close": (ok(BODY, "Connection: Close"), False),
    "chunks": (CHUNKS % (BODY[:4], len(BODY) - 4, BODY[4:]), True),
    "until the end": (b"HTTP/1.1 200 OK\r\n\r\n" + BODY, False),
    "old": (ok(BODY).replace(b"HTTP/1.1", b"HTTP/1.0"), False),
}


def read(parts: list[bytes], limit: int = 1000) -> tuple[bytes, bool] | None:
    """Return the answer whose bytes come in *parts*, ``None`` if it is not complete."""
    incoming = Incoming()
    answer = read_answer(incoming, limit)
    try:
        next(answer)
        for part in parts:
            incoming.data += part
            next(answer)
        incoming.ended = True
        next(answer)
    except StopIteration as end:
        body, stays = end.value
        return body, stays
    except ConnectionResetError:
        return None
    raise AssertionError("it waits for more than there is")


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(each % (len(data) + 1) for each in places), len(data)]
    return [data[one:other] for one, other in pairwise(edges)]


@pytest.mark.parametrize("name", ANSWERS)
@given(st.lists(st.integers(0, 1000), max_size=5))
def test_the_parts_of_an_answer_do_not_matter(name: str, places: list[int]) -> None:
    data, stays = ANSWERS[name]
    assert read(cut(data, places)) == (BODY, stays)


@pytest.mark.parametrize("name", ["length", "chunks"])
@given(st.integers(0, 1000))
def test_a_part_of_an_answer_is_none(name: str, place: int) -> None:
    data, _ = ANSWERS[name]
    assert read([data[: place % len(data)]]) is None


@pytest.mark.parametrize("name", ANSWERS)
def test_the_limit_is_that_of_the_body(name: str) -> None:
    data, stays = ANSWERS[name]
    assert read([data], len(BODY)) == (BODY, stays)
    with pytest.raises(SourceError, match="larger than"):
        read([data], len(BODY) - 1)


@given(st.lists(st.binary(max_size=30), max_size=5), st.sampled_from([b"", CHUNKED, ok(b"")]))
def test_garbage_is_no_answer_or_an_error(parts: list[bytes], before: bytes) -> None:
    try:
        found = read([before, *parts])
    except SourceError as error:
        assert "\n" not in str(error)
    else:
        assert found is None or len(found[0]) <= 200
