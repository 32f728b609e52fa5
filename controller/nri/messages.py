# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The few fields of NRI's messages that the plugin reads and writes (``pkg/api/api.proto``).

The wire format of protobuf is decoded here and not by its library: that costs 4 MiB of memory and
30 ms at the start for five messages. Unknown fields are skipped, so newer runtimes are understood.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

__all__ = (
    "Event",
    "MessageError",
    "Request",
    "configured",
    "decode_event",
    "decode_request",
    "decode_status",
    "encode_request",
    "encode_response",
    "register",
    "synchronized",
)

_PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
_RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"
# Text from pods: a name has at most 253 characters, an id 64.
_LONGEST_TEXT = 253
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}

# Values of each field, by its number, in order.
_Fields = Mapping[int, list[int | bytes]]


class MessageError(Exception):
    """A message is no protobuf, or a field has another type than it should have."""


class _Kind(IntEnum):
    """Events of the plugin API; the bit of an event in a subscription is 1 << (event - 1)."""

    RUN_POD_SANDBOX = 1
    START_CONTAINER = 6
    POST_UPDATE_CONTAINER = 9


_METHODS = {
    "RunPodSandbox": _Kind.RUN_POD_SANDBOX,
    "StartContainer": _Kind.START_CONTAINER,
    "PostUpdateContainer": _Kind.POST_UPDATE_CONTAINER,
}
_MASK = sum(1 << (each - 1) for each in _Kind)


class Request(NamedTuple):
    """A call of the runtime. ``method`` is the name of the procedure, ``payload`` its message."""

    method: str
    payload: bytes


class Event(NamedTuple):
    """A pod or container that came or changed: the pod's uid, and the event's name for the log."""

    name: str
    pod_uid: str


def decode_request(body: bytes) -> Request:
    """Return the call in the body of a ttrpc request.

    :raises MessageError: if it is none of a plugin
    """
    fields = _decode(body)
    if _text(fields, 1) != _PLUGIN_SERVICE:
        raise MessageError(f"a call of {_text(fields, 1)!r}")
    return Request(_text(fields, 2), _bytes(fields, 3))


def decode_event(request: Request) -> Event | None:
    """Return the event that *request* tells, ``None`` if it is another one.

    Runtimes before NRI 0.12 tell all events by ``StateChange``, which has the number of the event.

    :raises MessageError: if its payload is broken
    """
    kind = _METHODS.get(request.method)
    if kind is None and request.method != "StateChange":
        return None
    fields = _decode(request.payload)
    pod = fields
    if kind is None:
        number = fields.get(1, [0])[-1]
        if number not in set(_Kind):
            return None
        pod = _decode(_bytes(fields, 2))
        name = _Kind(number).name.title().replace("_", "")
        return Event(name, _text(pod, 3))
    return Event(request.method, _text(_decode(_bytes(pod, 1)), 3))


def decode_status(body: bytes) -> str:
    """Return the error in the body of a ttrpc response, empty if there is none.

    :raises MessageError: if it is broken
    """
    status = _decode(_bytes(_decode(body), 1))
    code = status.get(1, [0])[-1]
    return f"code {code!r}: {_text(status, 2)}" if code else ""


def register(name: str, index: str) -> bytes:
    """Return the body of the request that registers a plugin; two digits of *index* order them."""
    return encode_request("RegisterPlugin", _field(1, name) + _field(2, index))


def encode_request(method: str, payload: bytes) -> bytes:
    """Return the body of a call of the runtime."""
    return _field(1, _RUNTIME_SERVICE) + _field(2, method) + _field(3, payload)


def configured() -> bytes:
    """Return the answer to ``Configure``: the events that the plugin wants."""
    return _field(2, _MASK)


def synchronized(payload: bytes) -> bytes:
    """Return the answer to ``Synchronize``; the list of pods may come in several messages."""
    more = _decode(payload).get(3, [0])[-1]
    return _field(2, 1) if more else b""


def encode_response(payload: bytes) -> bytes:
    """Return the body of a ttrpc response without an error."""
    return _field(2, payload) if payload else b""


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3 | _VARINT) + _varint(value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _decode(data: bytes) -> _Fields:
    fields: dict[int, list[int | bytes]] = {}
    at = 0
    while at < len(data):
        key, at = _take_varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _take_varint(data, at)
            fields.setdefault(number, []).append(value)
            continue
        if kind == _BYTES:
            length, at = _take_varint(data, at)
        elif kind in _WIDTHS:
            length = _WIDTHS[kind]
        else:
            raise MessageError(f"a field of wire type {kind}")
        if at + length > len(data):
            raise MessageError("a field is longer than its message")
        fields.setdefault(number, []).append(data[at : at + length])
        at += length
    return fields


def _take_varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for place in range(10):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        number |= (byte & 127) << (7 * place)
        if byte < 128:
            return number, at
    raise MessageError("a number does not end")


def _bytes(fields: _Fields, number: int) -> bytes:
    value = fields.get(number, [b""])[-1]
    if not isinstance(value, bytes):
        raise MessageError(f"field {number} is a number")
    return value


def _text(fields: _Fields, number: int) -> str:
    text = _bytes(fields, number).decode(errors="replace")
    if len(text) > _LONGEST_TEXT:
        raise MessageError(f"a text of {len(text)} characters")
    return text
