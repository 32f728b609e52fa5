# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Messages of NRI, against the library of protobuf with the fields of ``pkg/api/api.proto``."""

import random
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.nri.messages import (
    Event,
    MessageError,
    configured,
    decode_event,
    decode_request,
    decode_status,
    encode_request,
    encode_response,
    register,
    synchronized,
)

_TYPE = descriptor_pb2.FieldDescriptorProto
# Message: field: (number, type); a type in words is another message.
_API: dict[str, dict[str, tuple[int, int | str]]] = {
    "Request": {"service": (1, _TYPE.TYPE_STRING), "method": (2, _TYPE.TYPE_STRING),
                "payload": (3, _TYPE.TYPE_BYTES), "timeout_nano": (4, _TYPE.TYPE_INT64)},
    "Status": {"code": (1, _TYPE.TYPE_INT32), "message": (2, _TYPE.TYPE_STRING)},
    "Response": {"status": (1, "Status"), "payload": (2, _TYPE.TYPE_BYTES)},
    "Register": {"plugin_name": (1, _TYPE.TYPE_STRING), "plugin_idx": (2, _TYPE.TYPE_STRING)},
    "Configured": {"events": (2, _TYPE.TYPE_INT32)},
    "Synchronized": {"more": (2, _TYPE.TYPE_BOOL)},
    "Synchronize": {"more": (3, _TYPE.TYPE_BOOL)},
    "Pod": {"id": (1, _TYPE.TYPE_STRING), "name": (2, _TYPE.TYPE_STRING),
            "uid": (3, _TYPE.TYPE_STRING), "pid": (10, _TYPE.TYPE_UINT32)},
    "Told": {"pod": (1, "Pod")},
    "StateChange": {"event": (1, _TYPE.TYPE_INT32), "pod": (2, "Pod")},
}  # fmt: skip


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="nri.proto", package="nri", syntax="proto3")
    for name, fields in _API.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            one = message.field.add(name=field, number=number, label=_TYPE.LABEL_OPTIONAL)
            if isinstance(kind, str):
                one.type, one.type_name = _TYPE.TYPE_MESSAGE, f".nri.{kind}"
            else:
                one.type = kind  # type: ignore[assignment]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"nri.{name}"))
        for name in _API
    }


PROTO = _classes()
TEXT = st.text(max_size=100)
PLUGIN = "nri.pkg.api.v1alpha1.Plugin"


def call(method: str, payload: bytes) -> bytes:
    """Return the body of a call of the plugin."""
    body: bytes = PROTO["Request"](
        service=PLUGIN, method=method, payload=payload, timeout_nano=2_000_000_000
    ).SerializeToString()
    return body


@given(st.sampled_from(("RunPodSandbox", "StartContainer", "PostUpdateContainer")), TEXT, TEXT)
def test_events_of_new_runtimes(method: str, name: str, uid: str) -> None:
    pod = PROTO["Pod"](id="a" * 64, name=name, uid=uid, pid=2**32 - 1)
    request = decode_request(call(method, PROTO["Told"](pod=pod).SerializeToString()))
    assert decode_event(request) == Event(method, uid)


@given(st.sampled_from(((1, "RunPodSandbox"), (6, "StartContainer"), (9, "PostUpdateContainer"))))
def test_events_of_old_runtimes(event: tuple[int, str]) -> None:
    number, name = event
    told = PROTO["StateChange"](event=number, pod=PROTO["Pod"](uid="u-1"))
    assert decode_event(decode_request(call("StateChange", told.SerializeToString()))) == Event(
        name, "u-1"
    )


@pytest.mark.parametrize(
    ("method", "payload"),
    [
        ("StopContainer", b""),
        ("StateChange", PROTO["StateChange"](event=2).SerializeToString()),
        ("StateChange", b""),
    ],
)
def test_other_events_are_none(method: str, payload: bytes) -> None:
    assert decode_event(decode_request(call(method, payload))) is None


def test_answers_and_calls_are_what_the_runtime_expects() -> None:
    # RunPodSandbox, StartContainer, PostUpdateContainer: the bits 0, 5 and 8.
    assert PROTO["Configured"].FromString(configured()).events == 0b1_0010_0001
    more = PROTO["Synchronize"](more=True).SerializeToString()
    assert PROTO["Synchronized"].FromString(synchronized(more)).more
    assert synchronized(b"") == b""
    sent = PROTO["Request"].FromString(register("sweetpoint", "90"))
    assert (sent.service, sent.method) == ("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin")
    told = PROTO["Register"].FromString(sent.payload)
    assert (told.plugin_name, told.plugin_idx) == ("sweetpoint", "90")
    assert PROTO["Response"].FromString(encode_response(b"x")).payload == b"x"
    assert encode_response(b"") == b""


@given(st.integers(-(2**31), 2**31 - 1), TEXT)
def test_a_refusal_is_read(code: int, message: str) -> None:
    status = PROTO["Status"](code=code, message=message)
    problem = decode_status(PROTO["Response"](status=status).SerializeToString())
    assert problem.endswith(message) if code else not problem


def test_calls_of_other_services_and_long_texts_are_refused() -> None:
    with pytest.raises(MessageError, match="a call of"):
        decode_request(encode_request("RegisterPlugin", b""))
    with pytest.raises(MessageError, match="characters"):
        decode_request(call("x" * 254, b""))


def test_of_mutated_bytes_nothing_but_message_errors_comes() -> None:
    chance = random.Random(1)
    pod = PROTO["Pod"](id="a" * 64, name="batch-1", uid="1b2c", pid=77)
    data = call("StartContainer", PROTO["Told"](pod=pod).SerializeToString())
    refused = 0
    for _ in range(10_000):
        mutated = bytearray(data)
        for _ in range(chance.randint(1, 5)):
            mutated[chance.randrange(len(mutated))] = chance.randrange(256)
        try:
            decode_event(decode_request(bytes(mutated)))
        except MessageError:
            refused += 1
    assert refused > 1000
