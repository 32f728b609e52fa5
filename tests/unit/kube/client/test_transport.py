# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A body comes out of its chunks whole, in whatever pieces these come."""

import itertools

from hypothesis import given
import hypothesis.strategies as st
import pytest

from controller.kube.client.transport import ChunkError, Chunks

PARTS = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
EXTENSIONS = st.sampled_from([b"", b" ", b";", b" ; a=b", b';c="d"'])


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(PARTS, EXTENSIONS, st.booleans(), st.lists(st.integers(0, 1000), max_size=12))
def test_whatever_the_pieces_the_body_is_the_same(
    parts: list[bytes], extension: bytes, upper: bool, places: list[int]
) -> None:
    sizes = [f"{len(part):{'X' if upper else 'x'}}".encode() + extension for part in parts]
    data = b"".join(b"%b\r\n%b\r\n" % pair for pair in zip(sizes, parts, strict=True))
    chunks = Chunks()
    assert b"".join(chunks.take(piece) for piece in cut(data, places)) == b"".join(parts)
    assert not chunks.ended
    assert chunks.take(b"0\r\nTrailer: x\r\n\r\n" + b"y" * 5000) == b""
    assert chunks.ended


def test_what_has_come_of_a_chunk_is_given_at_once() -> None:
    chunks = Chunks()
    assert chunks.take(b"5\r\nab") == b"ab"
    assert chunks.take(b"c") == b"c"
    assert chunks.take(b"de\r") == b"de"
    assert chunks.take(b"\n2\r\nfg\r\n0\r\n") == b"fg"
    assert chunks.ended


@pytest.mark.parametrize(
    "data",
    [
        b"zz\r\n",
        b"\r\n",
        b"-1\r\n",
        b"+1\r\na\r\n",
        b"0x1\r\na\r\n",
        b"1_0\r\n",
        b" 1\r\na\r\n",
        b"123456789\r\n",
        b"1\r\nab\r\n",
        b"1\r\na1\r\n",
        b"x" * 1025,
        b"1;" + b"x" * 1024,
        b"1\r\na" + b"x" * 1025,
    ],
)
def test_what_makes_no_sense_is_refused(data: bytes) -> None:
    with pytest.raises(ChunkError):
        Chunks().take(data)
    chunks = Chunks()
    with pytest.raises(ChunkError):
        for at in range(len(data)):
            chunks.take(data[at : at + 1])
