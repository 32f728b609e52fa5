# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The few fields of NRI's messages that the plugin reads and writes (``pkg/api/api.proto``).

The wire format of protobuf is decoded here and not by its library: that costs 4 MiB of memory and
30 ms at the start for five messages. Unknown fields are skipped, so newer runtimes are understood.
"""

from collections.abc import Mapping
from typing import NamedTuple

from controller.workloads.pods.pod import MAX_CHARS, RuntimePod, is_known_key

__all__ = (
    "MessageError",
    "PodList",
    "Request",
    "configured",
    "decode_request",
    "decode_status",
    "encode_request",
    "encode_response",
    "is_arrival",
    "pod_that_came",
    "pod_that_went",
    "register",
    "synchronized",
)

_PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
_RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"
_CHANGE = "StateChange"
# No name of a service, a procedure, a namespace or a pod is longer.
_LONGEST_TEXT = 253
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}

# Values of each field, by its number, in order.
_Fields = Mapping[int, list[int | bytes]]


class MessageError(Exception):
    """A message is no protobuf, or a field has another type than it should have."""


# The events that the plugin asks for, by procedure; the bit of an event is 1 << (event - 1).
_ARRIVALS = {"RunPodSandbox": 1, "StartContainer": 6, "PostUpdateContainer": 9}
_REMOVAL, _REMOVED = "RemovePodSandbox", 3
# A container that is about to be made; each runtime has a procedure of its own for it.
_CREATION, _CREATED = "CreateContainer", 4
_MASK = sum(1 << (each - 1) for each in (*_ARRIVALS.values(), _REMOVED, _CREATED))
# Of containers of the QoS class BestEffort, and of no others (pkg/kubelet/qos/policy.go).
_BEST_EFFORT_SCORE = 1000


class Request(NamedTuple):
    """A call of the runtime. ``method`` is the name of the procedure, ``payload`` its message."""

    method: str
    payload: bytes


def decode_request(body: bytes) -> Request:
    """Return the call in the body of a ttrpc request.

    :raises MessageError: if it is none of a plugin
    """
    fields = _decode(body)
    if _text(fields, 1) != _PLUGIN_SERVICE:
        raise MessageError(f"a call of {_text(fields, 1)!r}")
    return Request(_text(fields, 2), _bytes(fields, 3))


def is_arrival(request: Request) -> bool:
    """Return whether *request* tells of a pod or container that came or changed.

    Runtimes before NRI 0.12 tell all events by ``StateChange``, which has the number of the event.
    A container that is about to be made counts if a quota of the agent could make that fail.

    :raises MessageError: if its payload is broken
    """
    if request.method == _CREATION:
        pod = pod_that_came(request)
        return pod is not None and pod.limited
    if request.method != _CHANGE:
        return request.method in _ARRIVALS
    return _decode(request.payload).get(1, [0])[-1] in _ARRIVALS.values()


def pod_that_came(request: Request) -> RuntimePod | None:
    """Return the pod of the container that an arrival is about; ``None`` without a container.

    :raises MessageError: if its payload is broken
    """
    fields = _decode(request.payload)
    pod, container = (2, 3) if request.method == _CHANGE else (1, 2)
    if container not in fields:
        return None
    return _with_container(_pod(_bytes(fields, pod)), *_container(_bytes(fields, container)))


def pod_that_went(request: Request) -> tuple[str, str] | None:
    """Return UID and sandbox of the pod that *request* says is removed; ``None``: it is another.

    :raises MessageError: if its payload is broken
    """
    fields = _decode(request.payload)
    if request.method == _CHANGE and fields.get(1, [0])[-1] == _REMOVED:
        pod = _decode(_bytes(fields, 2))
    elif request.method == _REMOVAL:
        pod = _decode(_bytes(fields, 1))
    else:
        return None
    return _text(pod, 3), _text(pod, 1)


class PodList:
    """The pods with containers that ``Synchronize`` lists, in one message or in several.

    A pod and its container may come in different ones. Of each message only what is used is kept:
    runtimes list pods that ended long ago, too.
    """

    def __init__(self) -> None:
        self._pods: dict[str, RuntimePod] = {}
        self._containers: list[tuple[str, int, bool]] = []

    def add(self, payload: bytes) -> None:
        """Take a message.

        :raises MessageError: if it is broken
        """
        fields = _decode(payload)
        for each in _messages(fields, 1):
            pod = _pod(each)
            self._pods[pod.sandbox] = pod
        for each in _messages(fields, 2):
            self._containers.append((_text(_decode(each), 2), *_container(each)))

    def found(self) -> list[RuntimePod]:
        """Return the pods that have a container."""
        found: dict[str, RuntimePod] = {}
        for sandbox, score, limited in self._containers:
            if sandbox in self._pods:
                pod = _with_container(self._pods[sandbox], score, limited)
                found[sandbox] = pod.with_earlier(found.get(sandbox))
        return list(found.values())


def _pod(pod: bytes) -> RuntimePod:
    fields = _decode(pod)
    return RuntimePod(
        uid=_text(fields, 3),
        namespace=_text(fields, 4),
        name=_text(fields, 2),
        labels=_map(fields, 5, MAX_CHARS),
        annotations=_map(fields, 6, 0),
        oom_score_adj=0,
        sandbox=_text(fields, 1),
    )


def _container(container: bytes) -> tuple[int, bool]:
    """Return the oom_score_adj of a container, and whether it has a quota of a plugin."""
    linux = _decode(_bytes(_decode(container), 11))
    score = _signed(_decode(_bytes(linux, 4)))
    cpu = _decode(_bytes(_decode(_bytes(linux, 3)), 2))
    return score, score == _BEST_EFFORT_SCORE and _signed(_decode(_bytes(cpu, 2))) > 0


def _with_container(pod: RuntimePod, score: int, limited: bool) -> RuntimePod:
    return pod._replace(oom_score_adj=score, limited=limited)


def _map(fields: _Fields, number: int, others: int) -> dict[str, str]:
    """Return the texts with known keys, and *others* bytes of those with other ones.

    Their owner may make them megabytes in all.
    """
    found = {}
    left = {True: MAX_CHARS, False: others}
    for each in map(_decode, _messages(fields, number)):
        size = len(_bytes(each, 1)) + len(_bytes(each, 2))
        if size > MAX_CHARS:
            continue
        key = _long_text(each, 1)
        is_known = is_known_key(key)
        if size <= left[is_known]:
            left[is_known] -= size
            found[key] = _long_text(each, 2)
    return found


def _signed(wrapped: _Fields) -> int:
    value = wrapped.get(1, [0])[-1]
    if not isinstance(value, int):
        raise MessageError("field 1 is no number")
    return value - (1 << 64) if value >> 63 else value


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


def _messages(fields: _Fields, number: int) -> list[bytes]:
    found = [each for each in fields.get(number, []) if isinstance(each, bytes)]
    if len(found) != len(fields.get(number, [])):
        raise MessageError(f"field {number} is a number")
    return found


def _long_text(fields: _Fields, number: int) -> str:
    return _bytes(fields, number).decode(errors="replace")


def _text(fields: _Fields, number: int) -> str:
    text = _long_text(fields, number)
    if len(text) > _LONGEST_TEXT:
        raise MessageError(f"a text of {len(text)} characters")
    return text
