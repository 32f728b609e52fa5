# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Messages of NRI, against the library of protobuf with the fields of ``pkg/api/api.proto``."""

import random

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.nri.messages import (
    MessageError,
    configured,
    decode_request,
    decode_status,
    encode_request,
    encode_response,
    is_arrival,
    register,
    synchronized,
)
from tests.support.nri import PROTO, call, start

TEXT = st.text(max_size=100)


@pytest.mark.parametrize("method", ["RunPodSandbox", "StartContainer", "PostUpdateContainer"])
def test_events_of_new_runtimes(method: str) -> None:
    assert is_arrival(decode_request(call(method, start("u-1"))))


@pytest.mark.parametrize("number", [1, 6, 9])
def test_events_of_old_runtimes(number: int) -> None:
    told = PROTO["StateChange"](event=number, pod=PROTO["Pod"](uid="u-1"))
    assert is_arrival(decode_request(call("StateChange", told.SerializeToString())))


@pytest.mark.parametrize(
    ("method", "payload"),
    [
        ("StopContainer", start("u-1")),
        ("StateChange", PROTO["StateChange"](event=2).SerializeToString()),
        ("StateChange", b""),
    ],
)
def test_other_events_are_none(method: str, payload: bytes) -> None:
    assert not is_arrival(decode_request(call(method, payload)))


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
    data = call("StateChange", PROTO["StateChange"](event=6, pod=pod).SerializeToString())
    refused = 0
    for _ in range(10_000):
        mutated = bytearray(data)
        for _ in range(chance.randint(1, 5)):
            mutated[chance.randrange(len(mutated))] = chance.randrange(256)
        try:
            is_arrival(decode_request(bytes(mutated)))
        except MessageError:
            refused += 1
    assert refused > 1000
