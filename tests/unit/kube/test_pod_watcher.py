# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The pods of a list and its watches, from servers with all kinds of failures."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
import logging
from pathlib import Path
from random import Random
import socket
import threading
import time

import pytest

from controller.core.units import NS_PER_SEC
from controller.kube.client.api import Api, Limits
from controller.kube.client.rate_limit import Backoff, RateLimitedLogger
from controller.kube.pod_watcher import PodWatcher
from tests.support.http.raw_server import CHUNKED
from tests.support.kube.limits import PATIENT
from tests.support.kube.pod_server import NODE, PodServer, pod, refusal
from tests.support.waiting import DEADLINE_S, eventually

# For servers that hang, which is the only reason why a request ends at its limit.
SHORT = replace(PATIENT, answer_s=0.3, list_s=0.3)
Watch = Callable[..., PodWatcher]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PodServer]:
    with PodServer(tmp_path) as server:
        server.pods = [pod("one"), pod("two")]
        yield server


@pytest.fixture
def watch(server: PodServer) -> Iterator[Watch]:
    made = []

    def make(label_keys: frozenset[str] = frozenset(), limits: Limits = PATIENT) -> PodWatcher:
        backoff = Backoff(Random(1), first_s=0.01, longest_s=0.02)
        api = Api(server.kubeconfig, limits)
        made.append(PodWatcher(api, NODE, label_keys, backoff))
        return made[-1]

    yield make
    for watcher in made:
        watcher.close()
        assert watcher.failure is None


def names(watcher: PodWatcher) -> list[str]:
    return sorted(pod.name for pod in watcher.pods.pods.values())


def has(watcher: PodWatcher, *expected: str) -> None:
    eventually(f"{expected}", lambda: names(watcher) == list(expected))


def following(watcher: PodWatcher, server: PodServer, name: str = "later") -> None:
    """Add a pod at the server and wait until the watcher has it."""
    eventually("a list", lambda: watcher.pods.synced)
    server.pods.append(pod(name))
    server.send_event("ADDED", pod(name))
    eventually(name, lambda: name in names(watcher))


def test_before_the_first_response_it_is_not_synced(server: PodServer, watch: Watch) -> None:
    began_ns = time.monotonic_ns()
    asked, go = threading.Event(), threading.Event()

    def wait(connection: socket.socket) -> None:
        asked.set()
        go.wait(DEADLINE_S)
        connection.sendall(refusal(503, "Away"))

    server.script = [wait]
    watcher = watch()
    assert asked.wait(DEADLINE_S)
    assert not watcher.pods.synced
    assert watcher.age_s(time.monotonic_ns()) is None
    go.set()
    has(watcher, "one", "two")
    assert watcher.pods.synced
    now_ns = time.monotonic_ns()
    age_s = watcher.age_s(now_ns)
    assert age_s is not None
    assert 0 <= age_s <= (now_ns - began_ns) / NS_PER_SEC


def test_the_queries_of_lists_and_watches(server: PodServer, watch: Watch) -> None:
    following(watch(), server)
    assert server.lists == [{"fieldSelector": "spec.nodeName=node-1", "resourceVersion": "0"}]
    (query,) = server.watches
    assert 300 <= int(query.pop("timeoutSeconds")) <= 600
    assert query == {
        "fieldSelector": "spec.nodeName=node-1",
        "resourceVersion": "100",
        "allowWatchBookmarks": "true",
        "watch": "1",
    }


def test_pods_are_added_changed_and_deleted(server: PodServer, watch: Watch) -> None:
    watcher = watch()
    has(watcher, "one", "two")
    before = watcher.pods
    server.send_event("ADDED", pod("three"))
    has(watcher, "one", "three", "two")
    assert len(before.pods) == 2
    server.send_event("MODIFIED", pod("one", labels={"app": "web"}))

    def labels() -> dict[str, dict[str, str]]:
        return {each.name: dict(each.labels) for each in watcher.pods.pods.values()}

    eventually("the label", lambda: labels()["one"] == {"app": "web"})
    server.send_event("DELETED", pod("one"))
    server.send_event("DELETED", pod("never-seen"))
    has(watcher, "three", "two")
    assert len(server.lists) == 1


def test_pods_of_other_nodes_are_not_kept(server: PodServer, watch: Watch) -> None:
    crowd = [pod(f"other-{number}") for number in range(1000)]
    for each in crowd:
        each["spec"]["nodeName"] = "other"
    server.pods += crowd
    watcher = watch()
    has(watcher, "one", "two")
    server.send_event("ADDED", crowd[0])
    following(watcher, server)
    assert watcher.pods.refused == 0
    assert names(watcher) == ["later", "one", "two"]


def test_a_change_of_unused_fields_changes_nothing(server: PodServer, watch: Watch) -> None:
    watcher = watch()
    following(watcher, server)
    before = watcher.pods
    server.send_event("MODIFIED", pod("one", annotations={"example.org/beat": "1"}))
    server.send_event("BOOKMARK", {"kind": "Pod"})
    server.send_event("NEW-KIND", {"kind": "Pod"})
    server.cut()
    eventually("another watch", lambda: len(server.watches) == 2)
    assert watcher.pods is before
    assert server.watches[1]["resourceVersion"] == str(server.version)


def test_an_interrupted_watch_is_resumed_at_its_version(server: PodServer, watch: Watch) -> None:
    watcher = watch()
    following(watcher, server, "a")
    for name in "bcd":
        server.cut()
        following(watcher, server, name)
    assert len(server.lists) == 1
    assert [query["resourceVersion"] for query in server.watches] == ["100", "101", "102", "103"]


@pytest.mark.parametrize("how", ["event", "status"])
def test_after_status_410_it_lists_again(server: PodServer, watch: Watch, how: str) -> None:
    watcher = watch()
    has(watcher, "one", "two")
    server.pods = [pod("two"), pod("three")]
    if how == "event":
        server.send_raw(
            b'{"type":"ERROR","object":{"code":410,"reason":"Expired","message":"old"}}\n'
        )
    else:
        server.script = [refusal(410, "Expired")]
        server.cut()
    has(watcher, "three", "two")
    assert server.lists[1]["resourceVersion"] == "100"
    assert watcher.errors == {}
    assert watcher.problem == ""


@pytest.mark.parametrize("status", [410, 504])
def test_after_a_restore_of_the_server_it_accepts_an_older_version(
    server: PodServer, watch: Watch, status: int
) -> None:
    watcher = watch()
    has(watcher, "one", "two")
    server.version = 7
    answer = refusal(status, "Oops").replace(b'"no"', b'"Too large resource version: 100"')
    answer = answer.replace(b"Content-Length", b"X")
    server.script = [refusal(410, "Expired"), answer]
    server.cut()
    eventually("a list", lambda: len(server.lists) == 3)
    assert [query["resourceVersion"] for query in server.lists[1:]] == ["100", ""]
    following(watcher, server)
    assert server.watches[-1]["resourceVersion"] == "7"


def cut_in_the_middle(connection: socket.socket) -> None:
    connection.sendall(CHUNKED + b'ff\r\n{"items": [{"metadata": {')


FAILURES = {
    "429": refusal(429, "TooManyRequests"),
    "404": refusal(404, "NotFound"),  # of a server that is not ready; the kind always exists
    "500": refusal(500, "InternalError"),
    "503": refusal(503, "ServiceUnavailable"),
    "403": refusal(403, "Forbidden"),
    "401": refusal(401, "Unauthorized"),
    "nothing": b"",
    "nonsense": b"HTTP/1.1 200 OK\r\n\r\n<html>",
    "cut": cut_in_the_middle,
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("when", ["at first", "later"])
def test_pods_are_kept_through_failures_and_it_recovers(
    server: PodServer, watch: Watch, when: str, failure: bytes
) -> None:
    server.script = [failure] * 3 if when == "at first" else []
    watcher = watch()
    has(watcher, "one", "two")
    if when == "later":
        server.script = [failure] * 3
        server.cut()
        eventually("the failures", lambda: watcher.errors)
        assert names(watcher) == ["one", "two"]
    following(watcher, server)
    # An overloaded server is not asked for all pods again: the watch is resumed.
    lists_again = when == "at first" or failure in (FAILURES["404"], FAILURES["500"])
    assert len(server.lists) == (4 if lists_again else 1)
    assert sum(watcher.errors.values()) == 3
    assert watcher.problem == ""


def test_requests_to_a_server_that_hangs_time_out(server: PodServer, watch: Watch) -> None:
    server.script = [server.hang, server.drip]
    watcher = watch(limits=SHORT)
    has(watcher, "one", "two")
    first = watcher.errors["unreachable"]
    assert first >= 2  # more on a busy machine, where a good answer may come too late
    server.script = [server.hang, server.drip]
    server.cut()
    eventually("the failures", lambda: not server.script)
    following(watcher, server)
    assert watcher.errors["unreachable"] >= first + 2
    assert set(watcher.errors) == {"unreachable"}


def test_an_unavailable_server_is_logged_once(
    tmp_path: Path, watch: Watch, server: PodServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server.script = [refusal(503, "Away")] * 20
    watcher = watch()
    has(watcher, "one", "two")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["API server, pods: 503 Away: no", "API server, pods: works again"]
    assert watcher.errors == {"503": 20}


def test_it_respects_retry_after(
    server: PodServer, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = watch()
    following(watcher, server)
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return False

    monkeypatch.setattr(watcher._closing, "wait", wait)
    server.script = [refusal(429, "TooManyRequests", "Retry-After: 7")]
    server.cut()
    following(watcher, server, "again")
    (asked_for,) = (each for each in waits if each > 1)
    assert 7 <= asked_for < 8


@pytest.mark.parametrize(
    "event",
    [
        b'{"type": "ADDED"}\n',
        b'{"type": "ADDED", "object": []}\n',
        b'{"type": "ADDED", "object": {"metadata": []}}\n',
        b'{"type": "ADDED", "object": {"metadata": {"resourceVersion": 7}}}\n',
        b"[]\n",
        b'{"type": "ERROR", "object": 7}\n',
        b'{"type": "ERROR", "object": {"code": "x"}}\n',
    ],
)
def test_it_recovers_after_an_invalid_event(server: PodServer, watch: Watch, event: bytes) -> None:
    watcher = watch()
    has(watcher, "one", "two")
    server.send_raw(event)
    following(watcher, server)
    assert sum(watcher.errors.values()) == 1


def test_invalid_pods_are_refused_one_by_one_and_logged_once(
    server: PodServer, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    bad = pod("bad") | {"metadata": {"uid": "x", "namespace": "shop", "name": "../../etc"}}
    odd = {"metadata": {"uid": "../", "namespace": "shop", "name": "odd"}}
    deep: object = []
    for _ in range(500):
        deep = [deep]
    nowhere = {"metadata": {"namespace": deep, "name": "deep"}}
    server.pods += [bad, odd, {}, nowhere, pod("three", annotations={"a": deep})]
    watcher = watch()
    has(watcher, "one", "three", "two")
    refused = watcher.pods.refused
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(set(lines)) == refused == 4
    assert all("\n" not in line and len(line) < 400 for line in lines)
    server.send_event("MODIFIED", bad)
    server.send_event("ADDED", pod("four"))
    has(watcher, "four", "one", "three", "two")
    server.pods.append(pod("four"))
    server.script = [refusal(410, "Expired")]
    server.cut()
    eventually("a watch after the list", lambda: len(server.watches) == 3)
    assert [record.getMessage() for record in caplog.records] == lines
    assert watcher.pods.refused == refused
    server.send_event("DELETED", bad)
    eventually("one less", lambda: watcher.pods.refused == refused - 1)
    server.send_event("MODIFIED", pod("odd", uid="../"))
    server.send_event("MODIFIED", pod("two", uid="../"))
    server.send_event("DELETED", pod("two"))
    has(watcher, "four", "one", "three")


def test_an_invalid_pod_that_changes_all_the_time_is_not_logged_each_time(
    server: PodServer,
    watch: Watch,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A clock that stands still: no line is permitted after the first ones, however slow this is.
    still = partial(RateLimitedLogger, clock=lambda: 100.0)
    monkeypatch.setattr("controller.kube.pod_watcher.RateLimitedLogger", still)
    for number in range(1000):
        marks = {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": f"no {number}"}
        server.send_event("MODIFIED", pod("liar", annotations=marks))
    watcher = watch()
    following(watcher, server)
    assert watcher.pods.refused == 1
    assert len(caplog.records) == 250


def test_a_mirror_with_the_id_of_another_pod_takes_no_place(
    server: PodServer, watch: Watch
) -> None:
    claimed = pod("one")["metadata"]["uid"]
    marks = {"kubernetes.io/config.mirror": claimed, "kubernetes.io/config.hash": claimed}
    server.pods.insert(0, pod("liar", annotations=marks))
    server.pods.append(pod("another", annotations=marks))
    watcher = watch()
    has(watcher, "one", "two")
    assert {each.name for each in watcher.pods.claims[claimed]} == {"liar", "another"}


def test_the_uid_of_a_static_pod_is_the_hash_of_its_manifest(
    server: PodServer, watch: Watch
) -> None:
    marks = {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": "0" * 32}
    mirror = pod("static", annotations=marks)
    server.pods.append(mirror)
    watcher = watch()
    has(watcher, "one", "static", "two")
    assert "0" * 32 in watcher.pods.pods
    server.send_event("DELETED", mirror)
    has(watcher, "one", "two")


def test_configured_labels_are_kept(server: PodServer, watch: Watch) -> None:
    server.pods = [pod("one", labels={"team": "x", "tier": "y"})]
    watcher = watch(label_keys=frozenset({"team"}))
    has(watcher, "one")

    def labels() -> dict[str, str]:
        (only,) = watcher.pods.pods.values()
        return dict(only.labels)

    assert labels() == {"team": "x"}


@pytest.mark.parametrize("place", ["list", "watch", "wait"])
def test_it_ends_in_any_state(server: PodServer, watch: Watch, place: str) -> None:
    if place == "list":
        server.script = [server.hang]
    elif place == "wait":
        server.script = [refusal(429, "TooManyRequests", "Retry-After: 600")]
    watcher = watch()
    if place == "watch":
        following(watcher, server)
    else:
        eventually("a request", lambda: server.lists)
    if place == "wait":
        eventually("the answer", lambda: watcher.errors)
    watcher.close()
    assert not any(thread.name == "watch pods" for thread in threading.enumerate())
