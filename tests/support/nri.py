# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The runtime's end of NRI: messages by the library of protobuf, with the fields of its API."""

import socket
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from controller.nri.frames import PLUGIN, REQUEST, RESPONSE, RUNTIME, Message, Trunk, encode
from controller.nri.messages import encode_response
from controller.workloads.pods.pod import RuntimePod
from tests.support.waiting import DEADLINE_S

__all__ = ("PROTO", "Runtime", "call", "container", "sandbox", "start")

_TYPE = descriptor_pb2.FieldDescriptorProto
# Message: field: (number, type); a type in words is another message, with a star several of them.
_API: dict[str, dict[str, tuple[int, int | str]]] = {
    "Request": {"service": (1, _TYPE.TYPE_STRING), "method": (2, _TYPE.TYPE_STRING),
                "payload": (3, _TYPE.TYPE_BYTES), "timeout_nano": (4, _TYPE.TYPE_INT64)},
    "Status": {"code": (1, _TYPE.TYPE_INT32), "message": (2, _TYPE.TYPE_STRING)},
    "Response": {"status": (1, "Status"), "payload": (2, _TYPE.TYPE_BYTES)},
    "Register": {"plugin_name": (1, _TYPE.TYPE_STRING), "plugin_idx": (2, _TYPE.TYPE_STRING)},
    "Configured": {"events": (2, _TYPE.TYPE_INT32)},
    "Synchronized": {"more": (2, _TYPE.TYPE_BOOL)},
    "Synchronize": {"pods": (1, "Pod*"), "containers": (2, "Container*"),
                    "more": (3, _TYPE.TYPE_BOOL)},
    "Entry": {"key": (1, _TYPE.TYPE_STRING), "value": (2, _TYPE.TYPE_STRING)},
    "Pod": {"id": (1, _TYPE.TYPE_STRING), "name": (2, _TYPE.TYPE_STRING),
            "uid": (3, _TYPE.TYPE_STRING), "namespace": (4, _TYPE.TYPE_STRING),
            "labels": (5, "Entry*"), "annotations": (6, "Entry*"),
            "pid": (10, _TYPE.TYPE_UINT32)},
    "Number": {"value": (1, _TYPE.TYPE_INT64)},
    "Linux": {"resources": (3, "Resources"), "oom_score_adj": (4, "Number")},
    "Container": {"id": (1, _TYPE.TYPE_STRING), "pod_sandbox_id": (2, _TYPE.TYPE_STRING),
                  "linux": (11, "Linux")},
    "Told": {"pod": (1, "Pod"), "container": (2, "Container")},
    "Cpu": {"shares": (1, "Number"), "quota": (2, "Number"), "period": (3, "Number")},
    "Resources": {"cpu": (2, "Cpu")},
    "AdjustedLinux": {"resources": (2, "Resources")},
    "Adjustment": {"linux": (6, "AdjustedLinux")},
    "Created": {"adjust": (1, "Adjustment")},
    "StateChange": {"event": (1, _TYPE.TYPE_INT32), "pod": (2, "Pod"),
                    "container": (3, "Container")},
}  # fmt: skip


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="nri.proto", package="nri", syntax="proto3")
    for name, fields in _API.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            one = message.field.add(name=field, number=number, label=_TYPE.LABEL_OPTIONAL)
            if isinstance(kind, str):
                one.type, one.type_name = _TYPE.TYPE_MESSAGE, f".nri.{kind.rstrip('*')}"
                one.label = _TYPE.LABEL_REPEATED if kind.endswith("*") else _TYPE.LABEL_OPTIONAL
            else:
                one.type = kind  # type: ignore[assignment]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"nri.{name}"))
        for name in _API
    }


PROTO = _classes()
_PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"


def call(method: str, payload: bytes) -> bytes:
    """Return the body of a call of the plugin."""
    body: bytes = PROTO["Request"](
        service=_PLUGIN_SERVICE, method=method, payload=payload, timeout_nano=2_000_000_000
    ).SerializeToString()
    return body


def start(uid: str) -> bytes:
    """Return the message about the pod *uid*, none of whose containers is about to run."""
    payload: bytes = PROTO["Told"](pod=PROTO["Pod"](uid=uid)).SerializeToString()
    return payload


def sandbox(pod: RuntimePod) -> Any:
    """Return the message of *pod*, with a name of its own for its sandbox unless it has one."""
    entries = [
        [PROTO["Entry"](key=key, value=text) for key, text in sorted(each.items())]
        for each in (pod.labels, pod.annotations)
    ]
    names = {
        "id": pod.sandbox or f"s-{pod.uid}",
        "name": pod.name,
        "uid": pod.uid,
        "namespace": pod.namespace,
    }
    return PROTO["Pod"](**names, labels=entries[0], annotations=entries[1])


def container(pod: RuntimePod) -> Any:
    """Return the message of a container of *pod*, with a quota if that is limited."""
    score = PROTO["Number"](value=pod.oom_score_adj)
    linux = PROTO["Linux"](oom_score_adj=score)
    if pod.limited:
        linux.resources.cpu.quota.value = 80_000
    of = pod.sandbox or f"s-{pod.uid}"
    return PROTO["Container"](id=f"c-{pod.uid}", pod_sandbox_id=of, linux=linux)


class Runtime:
    """The runtime's end of the socket."""

    def __init__(self, listener: socket.socket) -> None:
        self.socket, _ = listener.accept()
        self.socket.settimeout(DEADLINE_S)
        self._trunk = Trunk()
        self._waiting: list[Message] = []

    def receive(self) -> Message:
        while not self._waiting:
            data = self.socket.recv(1 << 16)
            assert data, "the plugin closed the connection"
            self._waiting = self._trunk.feed(data)
        return self._waiting.pop(0)

    def __enter__(self) -> "Runtime":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def accept(self) -> None:
        """Answer the registration."""
        request = self.receive()
        assert PROTO["Request"].FromString(request.body).method == "RegisterPlugin"
        self.socket.sendall(
            encode(Message(RUNTIME, request.stream, RESPONSE, encode_response(b"")))
        )

    def ask(self, stream: int, method: str, payload: bytes = b"") -> None:
        self.socket.sendall(encode(Message(PLUGIN, stream, REQUEST, call(method, payload))))

    def answer(self) -> tuple[int, bytes]:
        message = self.receive()
        assert (message.connection, message.kind) == (PLUGIN, RESPONSE)
        return message.stream, PROTO["Response"].FromString(message.body).payload
