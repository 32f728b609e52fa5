# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""An HTTP answer that is read as its bytes come (RFC 9112), whatever brings them.

Not the parser of http.client: it reads from a socket that blocks, and its headers, by the email
package, take three times as long as all of this.
"""

from collections.abc import Generator
import re

from controller.probes.service_level.ledger import Reason, SourceError
from controller.probes.service_level.parse import printable

__all__ = ("Answer", "Incoming", "read_answer")

_MAX_HEAD_BYTES = 16 << 10
_MAX_HEADERS = 100
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: .*)?", re.DOTALL)

# Ends with the body, and whether the connection can be used again.
Answer = Generator[None, None, tuple[bytes, bool]]


class Incoming:
    """What came and was not taken yet; ``ended``: nothing more will come."""

    __slots__ = ("data", "ended")

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = False


def read_answer(incoming: Incoming, limit: int) -> Answer:
    """Take one answer from *incoming*; yield whenever more bytes are needed.

    :raises SourceError: the answer is not status 200, has more than *limit* bytes, is compressed or
        malformed.
    :raises ConnectionResetError: it ends too early.
    """
    head = yield from _until(incoming, b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    version = _STATUS.fullmatch(first)
    if version is None or len(lines) > _MAX_HEADERS:
        raise SourceError(Reason.FORMAT, "the answer is not HTTP")
    headers = _headers(lines)
    status = int(version[2])
    if 300 <= status < 400:
        location = printable(headers.get(b"location", b"nowhere").decode("latin-1"))
        raise SourceError(Reason.REDIRECT, f"redirects to {location}; not followed")
    if status != 200:
        raise SourceError(Reason.STATUS, f"HTTP status {status}")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise SourceError(Reason.FORMAT, "the answer is compressed, which was not requested")
    options = headers.get(b"connection", b"").lower()
    stays = version[1] == b"1" and b"close" not in options
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        return (yield from _chunks(incoming, limit)), stays
    if (length := headers.get(b"content-length")) is None:
        return (yield from _rest(incoming, limit)), False
    if not re.fullmatch(rb"[0-9]{1,18}", length):
        raise SourceError(Reason.FORMAT, "the answer is not HTTP: its length is no number")
    if int(length) > limit:
        raise SourceError(Reason.TOO_BIG, _too_big(limit))
    return (yield from _exactly(incoming, int(length))), stays


def _headers(lines: list[bytes]) -> dict[bytes, bytes]:
    """Return the values by name in lower case: of a name that is there twice, the first one."""
    found: dict[bytes, bytes] = {}
    for line in lines:
        name, _, value = line.partition(b":")
        found.setdefault(name.lower(), value.strip())
    return found


def _until(incoming: Incoming, end: bytes) -> Generator[None, None, bytes]:
    """Take the bytes before *end*, and *end*."""
    data, searched = incoming.data, 0
    while (found := data.find(end, searched)) < 0:
        if len(data) > _MAX_HEAD_BYTES:
            raise SourceError(Reason.TOO_BIG, "the head of the answer is too long")
        searched = max(0, len(data) - len(end) + 1)
        yield from _more(incoming)
    taken = bytes(data[:found])
    del data[: found + len(end)]
    return taken


def _exactly(incoming: Incoming, length: int) -> Generator[None, None, bytes]:
    data = incoming.data
    while len(data) < length:
        yield from _more(incoming)
    taken = bytes(data[:length])
    del data[:length]
    return taken


def _rest(incoming: Incoming, limit: int) -> Generator[None, None, bytes]:
    while len(incoming.data) <= limit:
        if incoming.ended:
            return bytes(incoming.data)
        yield
    raise SourceError(Reason.TOO_BIG, _too_big(limit))


def _chunks(incoming: Incoming, limit: int) -> Generator[None, None, bytes]:
    # RFC 9112 section 7.1; extensions and trailers are ignored. Not the decoder of
    # kube/client/transport.py: this one refuses a chunk by its announced size, before reading it.
    body = bytearray()
    while True:
        size = (yield from _until(incoming, b"\r\n")).partition(b";")[0].strip()
        if not re.fullmatch(rb"[0-9A-Fa-f]{1,8}", size):
            raise SourceError(Reason.FORMAT, "the answer is not HTTP: a chunk without a size")
        length = int(size, 16)
        if len(body) + length > limit:
            raise SourceError(Reason.TOO_BIG, _too_big(limit))
        body += yield from _exactly(incoming, length)
        if length == 0:
            break
        yield from _until(incoming, b"\r\n")
    # Trailers, which end with an empty line as the head does.
    for _ in range(_MAX_HEADERS):
        if not (yield from _until(incoming, b"\r\n")):
            return bytes(body)
    raise SourceError(Reason.FORMAT, "the answer is not HTTP: too many trailers")


def _more(incoming: Incoming) -> Generator[None, None, None]:
    if incoming.ended:
        raise ConnectionResetError("the server closed the connection too early")
    yield


def _too_big(limit: int) -> str:
    return f"the answer is larger than {limit >> 10} KiB"
