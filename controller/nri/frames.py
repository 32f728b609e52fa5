# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Frames between a container runtime and its NRI plugin: bytes to messages, messages to bytes.

A unix socket carries frames of two logical connections (``pkg/net/multiplex`` of containerd/nri).
On each of them there are ttrpc messages (``channel.go`` of containerd/ttrpc):

    frame    connection, length             two unsigned 32-bit numbers, then the content
    message  length, stream, type, flags    two of 32 bits and two of 8, then the body

All numbers are big-endian. A message may be divided among frames in any way.
"""

from collections.abc import Iterator
import struct
from typing import NamedTuple

__all__ = ("PLUGIN", "REQUEST", "RESPONSE", "RUNTIME", "FrameError", "Message", "Trunk", "encode")

# Connections: on the first one the runtime calls the plugin, on the second one the plugin calls.
PLUGIN, RUNTIME = 1, 2
REQUEST, RESPONSE = 1, 2

_FRAME = struct.Struct(">II")
_MESSAGE = struct.Struct(">IIBB")
# The reader of the runtime has a buffer of this size; a larger frame ends the connection.
_MOST_IN_FRAME = 4096
# Larger messages are refused by ttrpc, too (messageLengthMax).
_MOST_IN_MESSAGE = 4 << 20
_END_OF_STREAM = 1  # the flag of a request with one message


class FrameError(Exception):
    """The other end sent something that is no frame or no message; the connection is of no use."""


class Message(NamedTuple):
    """A ttrpc message. ``connection`` is ``PLUGIN`` or ``RUNTIME``."""

    connection: int
    stream: int
    kind: int
    body: bytes


class Trunk:
    """Puts the bytes that arrive together to messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._contents = {PLUGIN: bytearray(), RUNTIME: bytearray()}

    def feed(self, data: bytes) -> list[Message]:
        """Take *data* and return the messages that are complete now.

        :raises FrameError: of an unknown connection, or longer than ttrpc allows
        """
        self._bytes += data
        for connection, content in self._take_frames():
            if connection not in self._contents:
                raise FrameError(f"a frame of connection {connection}")
            self._contents[connection] += content
        return [
            message
            for connection, content in self._contents.items()
            for message in _take_messages(connection, content)
        ]

    def _take_frames(self) -> Iterator[tuple[int, bytes]]:
        waiting = self._bytes
        while len(waiting) >= _FRAME.size:
            connection, length = _FRAME.unpack_from(waiting)
            if length > _MOST_IN_MESSAGE + _MESSAGE.size:
                raise FrameError(f"a frame of {length} bytes")
            end = _FRAME.size + length
            if len(waiting) < end:
                return
            content = bytes(waiting[_FRAME.size : end])
            del waiting[:end]
            yield connection, content


def _take_messages(connection: int, content: bytearray) -> Iterator[Message]:
    while len(content) >= _MESSAGE.size:
        length, stream, kind, _ = _MESSAGE.unpack_from(content)
        if length > _MOST_IN_MESSAGE:
            raise FrameError(f"a message of {length} bytes")
        end = _MESSAGE.size + length
        if len(content) < end:
            return
        body = bytes(content[_MESSAGE.size : end])
        del content[:end]
        yield Message(connection, stream, kind, body)


def encode(message: Message) -> bytes:
    """Return *message* in frames that the runtime can read."""
    flags = _END_OF_STREAM if message.kind == REQUEST else 0
    head = _MESSAGE.pack(len(message.body), message.stream, message.kind, flags)
    content = head + message.body
    parts = [
        content[begin : begin + _MOST_IN_FRAME] for begin in range(0, len(content), _MOST_IN_FRAME)
    ]
    return b"".join(_FRAME.pack(message.connection, len(part)) + part for part in parts)
