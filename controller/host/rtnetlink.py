# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A minimal rtnetlink client: dumps, attributes, single changes.

For dumps in every tick: one of a link's classes takes about 20 us here, and milliseconds with a
general-purpose library.
"""

from collections.abc import Iterator
import ctypes
import errno
import os
import socket
import struct
import threading

from controller.host.facts import libc

__all__ = ("RouteSocket", "attribute", "attributes")

_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")
_ERROR, _DONE = 2, 3  # NLMSG_ERROR, NLMSG_DONE
_REQUEST, _ACK, _DUMP = 0x1, 0x4, 0x300  # NLM_F_REQUEST, NLM_F_ACK, NLM_F_ROOT | NLM_F_MATCH
_KIND_MASK = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER
_CLONE_NEWNET = 0x40000000
_BUFFER_BYTES = 1 << 16
_TIMEOUT_S = 1.0
_REMOVED = {errno.ENODEV, errno.ENOENT, errno.EINVAL, errno.EOPNOTSUPP}


class RouteSocket:
    """An rtnetlink socket in the network namespace behind the descriptor *netns*.

    ``None`` means the namespace of the calling thread. The socket stays in its namespace, and keeps
    the namespace alive until it is closed.

    :raises OSError: *netns* is not a network namespace, or it may not be entered.
    """

    def __init__(self, netns: int | None = None) -> None:
        self._socket = _open() if netns is None else _open_in(netns)
        self._socket.settimeout(_TIMEOUT_S)
        self._sequence = 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def dump(self, kind: int, body: bytes) -> Iterator[bytes]:
        """Yield the body of each message of a dump; nothing if its object was removed.

        :param kind: an RTM_GET number.
        :param body: the request without its header.
        :raises OSError: the kernel failed, as without memory, or the socket failed or timed out.
        """
        self._sequence += 1
        length = _HEADER.size + len(body)
        self._socket.send(_HEADER.pack(length, kind, _REQUEST | _DUMP, self._sequence, 0) + body)
        while True:
            data = self._socket.recv(_BUFFER_BYTES)
            offset = 0
            while offset + _HEADER.size <= len(data):
                length, answer, _, sequence, _ = _HEADER.unpack_from(data, offset)
                # Messages of an earlier dump that was not read to its end are skipped.
                if sequence == self._sequence:
                    if answer == _ERROR:
                        _check_dump(data, offset)
                    if answer in (_ERROR, _DONE):
                        return
                    yield data[offset + _HEADER.size : offset + length]
                offset += max(_HEADER.size, (length + 3) & ~3)

    def change(self, kind: int, body: bytes) -> None:
        """Request a change and wait for the acknowledgement.

        :param kind: an RTM_NEW number.
        :param body: the request without its header.
        :raises OSError: the kernel refused the change (with its errno), or the socket failed.
        """
        self._sequence += 1
        length = _HEADER.size + len(body)
        self._socket.send(_HEADER.pack(length, kind, _REQUEST | _ACK, self._sequence, 0) + body)
        while True:
            data = self._socket.recv(_BUFFER_BYTES)
            _, answer, _, sequence, _ = _HEADER.unpack_from(data)
            if answer == _ERROR and sequence == self._sequence:
                (code,) = struct.unpack_from("=i", data, _HEADER.size)
                if code:
                    raise OSError(-code, os.strerror(-code))
                return


def _check_dump(data: bytes, offset: int) -> None:
    """Check the error message at *offset*: an empty answer would mean that nothing is there.

    :raises OSError: it is none of an object that was removed.
    """
    (code,) = struct.unpack_from("=i", data, offset + _HEADER.size)
    if code and -code not in _REMOVED:
        raise OSError(-code, os.strerror(-code))


def attribute(kind: int, value: bytes) -> bytes:
    """Return an attribute encoded for a request."""
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


def attributes(body: bytes, start: int) -> dict[int, bytes]:
    """Return the attributes in *body* from offset *start* on, by kind; the last one of a kind."""
    found: dict[int, bytes] = {}
    while start + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, start)
        if length < _ATTRIBUTE.size:
            break
        found[kind & _KIND_MASK] = body[start + _ATTRIBUTE.size : start + length]
        start += (length + 3) & ~3
    return found


def _open() -> socket.socket:
    return socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
    )


def _open_in(netns: int) -> socket.socket:
    # setns(2) affects the calling thread only: a thread that ends here never has to switch back.
    opened: list[socket.socket] = []
    failed: list[int] = []

    def enter() -> None:
        if libc().setns(netns, _CLONE_NEWNET) != 0:
            failed.append(ctypes.get_errno())
            return
        try:
            opened.append(_open())
        except OSError as error:
            failed.append(error.errno or errno.EIO)

    thread = threading.Thread(target=enter, name="netns")
    try:
        thread.start()
    except RuntimeError:  # the host is short of threads, as by a fork bomb
        raise OSError(errno.EAGAIN, "no thread can be started") from None
    thread.join()
    if failed:
        raise OSError(failed[0], os.strerror(failed[0]))
    return opened[0]
