# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The doorbell at a socket on which the test is the runtime."""

from collections.abc import Iterator
import contextlib
from pathlib import Path
import queue
import socket
import time

import pytest

from controller.nri.doorbell import Doorbell
from controller.nri.frames import PLUGIN, RESPONSE, RUNTIME, Message, encode
from controller.workloads.pods.pod import RuntimePod
from tests.support.nri import PROTO, Runtime, container, sandbox, start
from tests.support.waiting import DEADLINE_S, eventually

NEVER_S = DEADLINE_S


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "nri.sock"))
        listener.listen()
        listener.settimeout(DEADLINE_S)
        yield listener


@pytest.fixture
def woken() -> "queue.Queue[None]":
    return queue.Queue()


@pytest.fixture
def doorbell(
    listener: socket.socket, woken: "queue.Queue[None]", request: pytest.FixtureRequest
) -> Iterator[Doorbell]:
    doorbell = Doorbell(
        listener.getsockname(), getattr(request, "param", NEVER_S), lambda: woken.put(None)
    )
    doorbell.begin()  # the first tick
    doorbell.end()
    yield doorbell
    doorbell.close()


def test_a_container_starts_after_the_tick(
    listener: socket.socket, doorbell: Doorbell, woken: "queue.Queue[None]"
) -> None:
    with Runtime(listener) as runtime:
        runtime.accept()
        runtime.ask(1, "Configure")
        stream, payload = runtime.answer()
        assert stream == 1
        assert PROTO["Configured"].FromString(payload).events == 0b1_0010_1101
        runtime.ask(3, "Synchronize", PROTO["Synchronize"](more=True).SerializeToString())
        assert PROTO["Synchronized"].FromString(runtime.answer()[1]).more

        runtime.ask(5, "StartContainer", start("u-1"))
        woken.get(timeout=DEADLINE_S)
        assert doorbell.begin()
        assert not doorbell.waits
        assert doorbell.state.in_time == 0
        doorbell.end()
        assert runtime.answer() == (5, b"")
        assert not doorbell.begin()
        eventually("an answer is counted", lambda: doorbell.state.in_time == 1)
        assert doorbell.state.problem == ""


@pytest.mark.parametrize("doorbell", [0.01], indirect=True)
def test_it_knows_the_pods_that_run(listener: socket.socket, doorbell: Doorbell) -> None:
    one, two = (made(each) for each in (1, 2))
    first = PROTO["Synchronize"](pods=[sandbox(one)], more=True)
    last = PROTO["Synchronize"](containers=[container(one)], more=False)
    came = PROTO["Told"](pod=sandbox(two), container=container(two)).SerializeToString()
    with Runtime(listener) as runtime:
        runtime.accept()
        runtime.ask(1, "Synchronize", first.SerializeToString())
        assert PROTO["Synchronized"].FromString(runtime.answer()[1]).more
        runtime.ask(1, "Synchronize", last.SerializeToString())
        assert runtime.answer() == (1, b"")
        assert doorbell.pods == {"u-1": one}
        runtime.ask(3, "StartContainer", came)
        assert runtime.answer() == (3, b"")
        assert doorbell.pods == {"u-1": one, "u-2": two}
        assert doorbell.begin() and doorbell.arrived == {"u-2"}
        assert not doorbell.begin() and not doorbell.arrived
        # Its process had ended, and kubelet made another sandbox.
        again = one._replace(sandbox="s-again")
        came = PROTO["Told"](pod=sandbox(again), container=container(again)).SerializeToString()
        runtime.ask(5, "StartContainer", came)
        assert runtime.answer() == (5, b"")
        removed = [PROTO["Told"](pod=sandbox(each)).SerializeToString() for each in (one, again)]
        for stream, payload, pods in (
            (7, removed[0], {"u-1": again, "u-2": two}),
            (9, removed[1], {"u-2": two}),
        ):
            runtime.ask(stream, "RemovePodSandbox", payload)
            assert runtime.answer() == (stream, b"")
            assert doorbell.pods == pods


@pytest.mark.parametrize("doorbell", [0.01], indirect=True)
def test_pods_that_ended_do_not_fill_the_memory(
    listener: socket.socket, doorbell: Doorbell
) -> None:
    texts = {"sweetpoint.dev/x": 16_000 * "x"}
    many = [made(number)._replace(annotations=texts) for number in range(300)]
    with Runtime(listener) as runtime:
        runtime.accept()
        for first in range(0, 300, 100):
            part = many[first : first + 100]
            told = PROTO["Synchronize"](
                pods=map(sandbox, part), containers=map(container, part), more=first < 200
            )
            runtime.ask(1, "Synchronize", told.SerializeToString())
            runtime.answer()
    kept = [*doorbell.pods]
    assert kept == [f"u-{number}" for number in range(300 - len(kept), 300)]
    assert 16_000 * len(kept) < 2 << 20 < 16_100 * (len(kept) + 1)


def made(number: int) -> RuntimePod:
    """Return a pod without texts, as the runtime tells it."""
    uid, name, sandbox = (f"{kind}-{number}" for kind in ("u", "p", "s"))
    return RuntimePod(uid, "shop", name, {}, {}, 1000, sandbox=sandbox)


def test_a_container_with_a_quota_of_another_plugin_waits_before_it_is_made(
    listener: socket.socket, doorbell: Doorbell, woken: "queue.Queue[None]"
) -> None:
    plain = made(1)
    limited = plain._replace(limited=True)
    told = PROTO["Told"](pod=sandbox(plain), container=container(limited)).SerializeToString()
    sidecar = PROTO["Told"](pod=sandbox(plain), container=container(plain)).SerializeToString()
    with Runtime(listener) as runtime:
        runtime.accept()
        for stream, method, payload in (
            (1, "CreateContainer", told),
            (3, "StartContainer", sidecar),
        ):
            runtime.ask(stream, method, payload)
            woken.get(timeout=DEADLINE_S)
            assert doorbell.begin() and doorbell.pods == {"u-1": limited}
            doorbell.end()
            assert runtime.answer() == (stream, b"")
        runtime.ask(5, "CreateContainer", sidecar)
        assert runtime.answer() == (5, b"")
        assert not doorbell.waits


def test_it_forgets_pods_that_went_while_it_was_not_connected(
    listener: socket.socket, doorbell: Doorbell
) -> None:
    one, two = (made(each) for each in (1, 2))
    for pods in ([one, two], [two]):
        listed = PROTO["Synchronize"](
            pods=[sandbox(each) for each in pods], containers=[container(each) for each in pods]
        )
        with Runtime(listener) as runtime:
            runtime.accept()
            runtime.ask(1, "Synchronize", listed.SerializeToString())
            assert runtime.answer() == (1, b"")
            assert doorbell.pods == {each.uid: each for each in pods}


@pytest.mark.timed
def test_it_connects_soon_after_the_runtime_listens_again(tmp_path: Path) -> None:
    path = tmp_path / "nri.sock"
    doorbell = Doorbell(str(path), NEVER_S, lambda: None)
    with contextlib.closing(doorbell), socket.socket(socket.AF_UNIX) as listener:
        time.sleep(30)  # a usual restart is shorter
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(2)
        with Runtime(listener) as runtime:
            runtime.accept()
            eventually("the plugin is registered", lambda: not doorbell.state.problem)


def test_a_tick_that_began_before_is_not_enough(
    listener: socket.socket, doorbell: Doorbell, woken: "queue.Queue[None]"
) -> None:
    with Runtime(listener) as runtime:
        runtime.accept()
        doorbell.begin()
        runtime.ask(1, "RunPodSandbox", start("u-1"))
        woken.get(timeout=DEADLINE_S)
        doorbell.end()
        assert doorbell.waits
        assert doorbell.state.in_time == 0
        doorbell.begin()
        doorbell.end()
        assert runtime.answer() == (1, b"")


def test_before_the_first_tick_no_container_waits(
    listener: socket.socket, woken: "queue.Queue[None]"
) -> None:
    doorbell = Doorbell(listener.getsockname(), 2 * NEVER_S, lambda: woken.put(None))
    with contextlib.closing(doorbell), Runtime(listener) as runtime:
        runtime.accept()
        for stream in (1, 3, 5):
            runtime.ask(stream, "StartContainer", start("u-1"))
            assert runtime.answer() == (stream, b"")
            woken.get(timeout=DEADLINE_S)
        assert doorbell.begin()
        doorbell.end()
        # These answers are no reason to answer at once later.
        runtime.ask(7, "StartContainer", start("u-2"))
        woken.get(timeout=DEADLINE_S)
        assert doorbell.begin()
        doorbell.end()
        assert runtime.answer() == (7, b"")
        eventually("an answer is counted", lambda: doorbell.state.in_time == 1)


@pytest.mark.parametrize("doorbell", [0.01], indirect=True)
def test_without_ticks_every_answer_comes_and_is_empty(
    listener: socket.socket, doorbell: Doorbell
) -> None:
    with Runtime(listener) as runtime:
        runtime.accept()
        for stream in range(1, 20, 2):
            runtime.ask(stream, "StartContainer", start("u-1"))
            assert runtime.answer() == (stream, b"")
        eventually("late answers are counted", lambda: doorbell.state.late == 10)


@pytest.mark.parametrize("doorbell", [0.01], indirect=True)
def test_after_three_late_ticks_containers_do_not_wait(
    listener: socket.socket, doorbell: Doorbell
) -> None:
    with Runtime(listener) as runtime:
        runtime.accept()
        for stream in (1, 3, 5):
            runtime.ask(stream, "StartContainer", start("u-1"))
            assert runtime.answer() == (stream, b"")
        doorbell._answer_within_s = 2 * NEVER_S
        runtime.ask(7, "StartContainer", start("u-1"))
        assert runtime.answer() == (7, b"")


def test_other_calls_are_answered_without_a_tick(
    listener: socket.socket, doorbell: Doorbell
) -> None:
    with Runtime(listener) as runtime:
        runtime.accept()
        runtime.ask(1, "Shutdown")
        runtime.ask(3, "CreateContainer", start("u-1"))
        assert [runtime.answer(), runtime.answer()] == [(1, b""), (3, b"")]
        assert not doorbell.waits


@pytest.mark.parametrize("data", [b"x" * 100, encode(Message(PLUGIN, 1, 9, b"")), b""])
def test_after_nonsense_it_connects_again(
    listener: socket.socket, doorbell: Doorbell, data: bytes
) -> None:
    with Runtime(listener) as runtime:
        runtime.accept()
        eventually("the plugin is registered", lambda: not doorbell.state.problem)
        runtime.socket.sendall(data)
        runtime.socket.shutdown(socket.SHUT_WR)
        eventually("a problem is told", lambda: doorbell.state.problem)
        with Runtime(listener) as again:
            again.accept()
            eventually("the plugin is registered again", lambda: not doorbell.state.problem)


def test_a_refused_plugin_says_why(listener: socket.socket, doorbell: Doorbell) -> None:
    with Runtime(listener) as runtime:
        request = runtime.receive()
        response = PROTO["Response"](status=PROTO["Status"](code=2, message="index in use"))
        body = response.SerializeToString()
        runtime.socket.sendall(encode(Message(RUNTIME, request.stream, RESPONSE, body)))
        eventually("a problem is told", lambda: "index in use" in doorbell.state.problem)


def test_at_the_end_nothing_waits(
    listener: socket.socket, doorbell: Doorbell, woken: "queue.Queue[None]"
) -> None:
    with Runtime(listener) as runtime:
        runtime.accept()
        runtime.ask(1, "StartContainer", start("u-1"))
        woken.get(timeout=DEADLINE_S)
        doorbell.close()
        assert doorbell.state.in_time + doorbell.state.late == 1
