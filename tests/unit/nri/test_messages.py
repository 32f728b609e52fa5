# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Messages of NRI, against the library of protobuf with the fields of ``pkg/api/api.proto``."""

import random
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.nri.messages import (
    MessageError,
    PodList,
    configured,
    decode_request,
    decode_status,
    encode_request,
    encode_response,
    is_arrival,
    pod_that_came,
    pod_that_went,
    register,
    synchronized,
)
from controller.workloads.pods.pod import RuntimePod
from tests.support.nri import PROTO, call, container, sandbox, start

TEXT = st.text(max_size=100)
TEXTS = st.dictionaries(TEXT, st.text(max_size=500), max_size=5)
KNOWN = TEXT.map("sweetpoint.dev/".__add__)
PODS = st.builds(
    RuntimePod,
    *(TEXT, TEXT, TEXT, TEXTS, st.dictionaries(KNOWN, st.text(max_size=500), max_size=5)),
    *(st.integers(-1000, 1000), st.just(value=False), TEXT.map("s-".__add__)),
)
ANNOTATIONS = {"sweetpoint.dev/qos": "best-effort"}
POD = RuntimePod("u-1", "shop", "batch-1", {"app": "batch"}, ANNOTATIONS, -997, sandbox="s-1")


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


@pytest.mark.parametrize(
    ("quota", "score", "limited"),
    [(80_000, 1000, True), (-1, 1000, False), (0, 1000, False), (80_000, 999, False)],
)
def test_a_quota_that_is_not_one_of_kubelet(quota: int, score: int, limited: bool) -> None:
    pod = POD._replace(oom_score_adj=score)
    made = container(pod)
    made.linux.resources.cpu.quota.value = quota
    told = PROTO["Told"](pod=sandbox(pod), container=made).SerializeToString()
    request = decode_request(call("CreateContainer", told))
    assert is_arrival(request) == limited
    assert pod_that_came(request) == pod._replace(limited=limited)


def test_one_limited_container_is_enough() -> None:
    plain = POD._replace(oom_score_adj=1000)
    limited = plain._replace(limited=True)
    for pods in ((plain, limited), (limited, plain)):
        told = PROTO["Synchronize"](pods=[sandbox(POD)], containers=map(container, pods))
        assert listed(told.SerializeToString()) == [limited]


@given(PODS)
def test_a_pod_comes_with_its_first_container(pod: RuntimePod) -> None:
    told = PROTO["Told"](pod=sandbox(pod), container=container(pod)).SerializeToString()
    assert pod_that_came(decode_request(call("StartContainer", told))) == pod
    changed = PROTO["StateChange"](event=6, pod=sandbox(pod), container=container(pod))
    assert pod_that_came(decode_request(call("StateChange", changed.SerializeToString()))) == pod


@pytest.mark.parametrize("method", ["RunPodSandbox", "StateChange"])
def test_a_pod_without_a_container_is_not_known_yet(method: str) -> None:
    kind = "Told" if method == "RunPodSandbox" else "StateChange"
    told = PROTO[kind](pod=sandbox(POD)).SerializeToString()
    assert pod_that_came(decode_request(call(method, told))) is None


def test_a_removed_pod_is_named() -> None:
    new = PROTO["Told"](pod=sandbox(POD)).SerializeToString()
    old = PROTO["StateChange"](event=3, pod=sandbox(POD)).SerializeToString()
    assert pod_that_went(decode_request(call("RemovePodSandbox", new))) == ("u-1", "s-1")
    assert pod_that_went(decode_request(call("StateChange", old))) == ("u-1", "s-1")
    assert pod_that_went(decode_request(call("StopContainer", new))) is None


@given(st.lists(PODS, unique_by=(lambda pod: pod.uid, lambda pod: pod.sandbox), max_size=5))
def test_pods_that_run_have_a_container(pods: list[RuntimePod]) -> None:
    told = PROTO["Synchronize"](
        pods=map(sandbox, pods), containers=map(container, pods[1:])
    ).SerializeToString()
    assert {pod.uid: pod for pod in listed(told)} == {pod.uid: pod for pod in pods[1:]}


def test_of_an_owners_texts_the_known_ones_are_kept_and_few_others() -> None:
    huge = {f"example.org/{number}": 60_000 * "x" + "\N{SNOWMAN}" for number in range(4)}
    many = {f"label-{number}": 60 * "x" for number in range(1000)}
    pod = POD._replace(annotations={**huge, **POD.annotations}, labels={**many, **POD.labels})
    told = PROTO["Told"](pod=sandbox(pod), container=container(pod)).SerializeToString()
    kept = pod_that_came(decode_request(call("StartContainer", told)))
    assert kept is not None and kept.annotations == ANNOTATIONS
    assert kept.labels["app"] == "batch" and 200 < len(kept.labels) < 300
    too_long = POD._replace(annotations={"sweetpoint.dev/qos": 20_000 * "x"})
    assert (
        listed(
            PROTO["Synchronize"](
                pods=[sandbox(too_long)], containers=[container(too_long)]
            ).SerializeToString()
        )[0].annotations
        == {}
    )


def listed(*payloads: bytes) -> list[RuntimePod]:
    pods = PodList()
    for each in payloads:
        pods.add(each)
    return pods.found()


def test_of_a_list_in_many_messages_only_what_is_used_stays() -> None:
    huge = POD._replace(annotations={"example.org/x": 1_000_000 * "x"})
    payload = PROTO["Synchronize"](pods=[sandbox(huge)], more=True).SerializeToString()
    pods = PodList()
    tracemalloc.start()
    try:
        for _ in range(30):
            pods.add(payload)
        pods.add(PROTO["Synchronize"](containers=[container(huge)]).SerializeToString())
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [pod.uid for pod in pods.found()] == ["u-1"]
    assert peak_bytes < 8 << 20, "more than a few copies of one message"


def test_answers_and_calls_are_what_the_runtime_expects() -> None:
    # RunPodSandbox, RemovePodSandbox, CreateContainer, StartContainer, PostUpdateContainer: bits 0,
    # 2, 3, 5 and 8.
    assert PROTO["Configured"].FromString(configured()).events == 0b1_0010_1101
    more = PROTO["Synchronize"](more=True).SerializeToString()
    assert PROTO["Synchronized"].FromString(synchronized(more)).more
    assert synchronized(b"") == b""
    sent = PROTO["Request"].FromString(register("sweetpoint", "99"))
    assert (sent.service, sent.method) == ("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin")
    told = PROTO["Register"].FromString(sent.payload)
    assert (told.plugin_name, told.plugin_idx) == ("sweetpoint", "99")
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
    told = PROTO["StateChange"](event=6, pod=sandbox(POD), container=container(POD))
    data = call("StateChange", told.SerializeToString())
    refused = 0
    for _ in range(10_000):
        mutated = bytearray(data)
        for _ in range(chance.randint(1, 5)):
            mutated[chance.randrange(len(mutated))] = chance.randrange(256)
        try:
            request = decode_request(bytes(mutated))
            for read in (is_arrival, pod_that_came, pod_that_went):
                read(request)
            listed(request.payload)
        except MessageError:
            refused += 1
    assert refused > 1000
