# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Frames and messages of NRI: whole, in pieces, broken."""

import contextlib
import random
import struct

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.nri.frames import PLUGIN, REQUEST, RUNTIME, FrameError, Message, Trunk, encode

MESSAGES = st.builds(
    Message,
    st.sampled_from((PLUGIN, RUNTIME)),
    st.integers(0, 2**32 - 1),
    st.integers(0, 255),
    st.binary(max_size=9000),
)


@given(st.lists(MESSAGES, max_size=4), st.integers(1, 5000))
def test_messages_arrive_in_any_pieces(messages: list[Message], piece: int) -> None:
    data = b"".join(map(encode, messages))
    trunk = Trunk()
    found = [
        message
        for at in range(0, len(data), piece)
        for message in trunk.feed(data[at : at + piece])
    ]
    for connection in (PLUGIN, RUNTIME):  # the order of a connection is kept, not that of both
        assert [each for each in found if each.connection == connection] == [
            each for each in messages if each.connection == connection
        ]


def test_no_frame_is_longer_than_the_reader_of_the_runtime() -> None:
    data = encode(Message(RUNTIME, 1, REQUEST, bytes(10_000)))
    lengths = []
    while data:
        connection, length = struct.unpack_from(">II", data)
        assert connection == RUNTIME
        lengths.append(length)
        data = data[8 + length :]
    assert lengths == [4096, 4096, 10_010 - 2 * 4096]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (struct.pack(">II", 3, 1) + b"x", "connection 3"),
        (struct.pack(">II", 0, 0), "connection 0"),
        (struct.pack(">II", 1, 1 << 31), "frame of 2147483648 bytes"),
        (struct.pack(">II", 1, 10) + struct.pack(">IIBB", 1 << 30, 1, 1, 0), "message of"),
    ],
)
def test_nonsense_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(FrameError, match=words):
        Trunk().feed(data)


def test_an_empty_frame_carries_nothing() -> None:
    assert Trunk().feed(struct.pack(">II", 1, 0) + encode(Message(1, 7, 1, b"a"))) == [
        Message(1, 7, 1, b"a")
    ]


def test_of_mutated_bytes_nothing_but_frame_errors_comes() -> None:
    chance = random.Random(1)
    data = b"".join(encode(Message(1, stream, 1, bytes(stream * 50))) for stream in range(20))
    refused = 0
    for _ in range(3000):
        mutated = bytearray(data)
        for _ in range(chance.randint(1, 5)):
            mutated[chance.randrange(len(mutated))] = chance.randrange(256)
        trunk = Trunk()
        try:
            trunk.feed(bytes(mutated[: chance.randrange(len(mutated))]))
        except FrameError:
            refused += 1
            with contextlib.suppress(FrameError):
                trunk.feed(data)
    assert refused > 100
