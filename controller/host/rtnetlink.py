# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""rtnetlink in the raw: dumps and their attributes, and the few changes made as raw.

A dump of one link's classes takes some 20 us here; a general library needs milliseconds for it,
which is too much for something that is asked in every tick.
"""

from collections.abc import Iterator
import ctypes
import os
import socket
import struct
import threading

__all__ = ("RouteSocket", "attribute", "attributes")

_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")
_ERROR, _DONE = 2, 3  # NLMSG_ERROR, NLMSG_DONE
_REQUEST, _ACK, _DUMP = 0x1, 0x4, 0x300  # NLM_F_REQUEST, NLM_F_ACK, NLM_F_ROOT | NLM_F_MATCH
_KIND_MASK = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER
_CLONE_NEWNET = 0x40000000
_BUFFER_BYTES = 1 << 16
_TIMEOUT_S = 1.0


class RouteSocket:
    """A socket in the network namespace that *netns* is a file of (``None``: this thread's).

    It stays in that namespace and keeps it alive, as long as it is open.

    :raises OSError: there is no such namespace, or it may not be entered.
    """

    def __init__(self, netns: int | None = None) -> None:
        self._socket = _open() if netns is None else _open_in(netns)
        self._socket.settimeout(_TIMEOUT_S)
        self._sequence = 0

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def dump(self, kind: int, body: bytes) -> Iterator[bytes]:
        """Yield what follows the header of each answer to a dump; nothing if the object is gone.

        :param kind: an RTM_GET number.
        :param body: what follows the header of the request.
        :raises OSError: the kernel could not answer.
        """
        self._sequence += 1
        length = _HEADER.size + len(body)
        self._socket.send(_HEADER.pack(length, kind, _REQUEST | _DUMP, self._sequence, 0) + body)
        while True:
            data = self._socket.recv(_BUFFER_BYTES)
            offset = 0
            while offset + _HEADER.size <= len(data):
                length, answer, _, sequence, _ = _HEADER.unpack_from(data, offset)
                # What is left over from a dump that was not read to its end is skipped.
                if sequence == self._sequence:
                    if answer in (_ERROR, _DONE):
                        return
                    yield data[offset + _HEADER.size : offset + length]
                offset += max(_HEADER.size, (length + 3) & ~3)

    def change(self, kind: int, body: bytes) -> None:
        """Ask for a change and wait for the kernel's yes.

        :param kind: an RTM_NEW number.
        :param body: what follows the header of the request.
        :raises OSError: the kernel said no; with its errno.
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


def attribute(kind: int, value: bytes) -> bytes:
    """Return an attribute as it goes into a request."""
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


def attributes(body: bytes, start: int) -> dict[int, bytes]:
    """Return the attributes in *body* from *start* on; of several of a kind the last."""
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
    # A namespace belongs to a thread: one that ends afterwards cannot forget to come back.
    opened: list[socket.socket] = []
    failed: list[int] = []

    def enter() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(netns, _CLONE_NEWNET) == 0:
            opened.append(_open())
        else:
            failed.append(ctypes.get_errno())

    thread = threading.Thread(target=enter, name="netns")
    thread.start()
    thread.join()
    if failed:
        raise OSError(failed[0], os.strerror(failed[0]))
    return opened[0]
