# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Decoding of chunked bodies, however the data is split."""

import itertools

from hypothesis import given
import hypothesis.strategies as st
import pytest

from controller.kube.client.transport import ChunkDecoder, ChunkError

PARTS = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
EXTENSIONS = st.sampled_from([b"", b" ", b";", b" ; a=b", b';c="d"'])


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(PARTS, EXTENSIONS, st.booleans(), st.lists(st.integers(0, 1000), max_size=12))
def test_the_body_does_not_depend_on_how_the_data_is_split(
    parts: list[bytes], extension: bytes, upper: bool, places: list[int]
) -> None:
    sizes = [f"{len(part):{'X' if upper else 'x'}}".encode() + extension for part in parts]
    data = b"".join(b"%b\r\n%b\r\n" % pair for pair in zip(sizes, parts, strict=True))
    decoder = ChunkDecoder()
    assert b"".join(decoder.decode(piece) for piece in cut(data, places)) == b"".join(parts)
    assert not decoder.ended
    assert decoder.decode(b"0\r\nTrailer: x\r\n\r\n" + b"y" * 5000) == b""
    assert decoder.ended


def test_an_incomplete_chunk_is_returned_as_far_as_it_was_received() -> None:
    decoder = ChunkDecoder()
    assert decoder.decode(b"5\r\nab") == b"ab"
    assert decoder.decode(b"c") == b"c"
    assert decoder.decode(b"de\r") == b"de"
    assert decoder.decode(b"\n2\r\nfg\r\n0\r\n") == b"fg"
    assert decoder.ended


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
def test_invalid_data_is_refused(data: bytes) -> None:
    with pytest.raises(ChunkError):
        ChunkDecoder().decode(data)
    decoder = ChunkDecoder()
    with pytest.raises(ChunkError):
        for at in range(len(data)):
            decoder.decode(data[at : at + 1])
