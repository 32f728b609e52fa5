# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""PURE: the body of an HTTP answer, taken out of its chunks as they come (RFC 9112, 7.1)."""

import re

__all__ = ("ChunkError", "Chunks")

_END = b"\r\n"
# The size, and extensions, which nobody uses.
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?")
_LONGEST_LINE = 1024


class ChunkError(Exception):
    """This is no body in chunks."""


class Chunks:
    """``ended``: the last chunk has come; trailers after it, or whatever it is, do not count."""

    def __init__(self) -> None:
        self.ended = False
        self._rest = b""
        # Bytes of the chunk that have not come; what ends it is yet to come as well.
        self._left = 0
        self._inside = False

    def take(self, data: bytes) -> bytes:
        """Return what of the body is in *data*, the next bytes of the connection.

        :raises ChunkError: it makes no sense.
        """
        data, at = self._rest + data, 0
        body = []
        while not self.ended:
            part = data[at : at + self._left]
            body.append(part)
            at += len(part)
            self._left -= len(part)
            end = data.find(_END, at)
            if self._left or end < 0:
                break
            self._line(data[at:end])
            at = end + len(_END)
        self._rest = b"" if self.ended else data[at:]
        if len(self._rest) > _LONGEST_LINE:
            raise ChunkError("a line without an end")
        return b"".join(body)

    def _line(self, line: bytes) -> None:
        if self._inside:
            if line:
                raise ChunkError("a chunk that is longer than it said")
            self._inside = False
            return
        size = _SIZE.fullmatch(line)
        if size is None:
            raise ChunkError("a chunk without a size")
        self._left = int(size[1], 16)
        self._inside = True
        self.ended = self._left == 0
