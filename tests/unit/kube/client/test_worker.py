# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The worker thread: order of jobs, failures, and its end."""

from collections.abc import Callable, Iterator
from functools import partial
import logging
from pathlib import Path
import threading
from types import SimpleNamespace

import pytest

from controller.kube.client.api import Api, Limits
from controller.kube.client.errors import ApiError, ApiUnreachable
from controller.kube.client.worker import Worker
from tests.support.kube.pod_server import PodServer
from tests.support.waiting import DEADLINE_S, eventually


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker(Api(Path("/nonexistent")))
    yield worker
    worker.close(0.1)
    assert not any(thread.name == "kube-worker" for thread in threading.enumerate())


@pytest.fixture
def advance(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that moves the clock of workers, which stands still otherwise, by seconds."""
    now_s = 1000.0

    def advance(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    clock = SimpleNamespace(monotonic=lambda: now_s)
    monkeypatch.setattr("controller.kube.client.worker.time", clock)
    return advance


def fail(error: Exception) -> None:
    raise error


def turn(worker: Worker) -> None:
    """Wait until the worker ran what is due now: periodic jobs run before submitted ones."""
    done = threading.Event()
    worker.submit(done.set)
    assert done.wait(DEADLINE_S)


def block(worker: Worker) -> threading.Event:
    """Make the worker wait for the returned event, and return when it does."""
    started, go = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        go.wait(DEADLINE_S)

    worker.submit(wait)
    assert started.wait(DEADLINE_S)
    return go


def test_jobs_run_in_order_in_one_other_thread(worker: Worker) -> None:
    done: list[tuple[int, int]] = []

    def job(number: int) -> None:
        done.append((number, threading.get_ident()))

    for number in range(50):
        assert worker.submit(partial(job, number))
    eventually("all", lambda: len(done) == 50)
    assert [number for number, _ in done] == list(range(50))
    assert {ident for _, ident in done} != {threading.get_ident()}
    assert len({ident for _, ident in done}) == 1


def test_failed_requests_are_counted_and_logged_once(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(5):
        worker.submit(lambda: fail(ApiError(403, "Forbidden", "no")), "marks")
    worker.submit(lambda: fail(ApiUnreachable("away")), "marks")
    worker.submit(lambda: fail(ApiUnreachable("away")), "events")
    eventually("all", lambda: sum(worker.errors.values()) == 7)
    assert worker.errors == {"403": 5, "unreachable": 2}
    worker.submit(lambda: None, "marks")
    eventually("the success", lambda: len(caplog.records) >= 4)
    assert [record.getMessage() for record in caplog.records] == [
        "API server, marks: 403 Forbidden: no",
        "API server, marks: away",
        "API server, events: away",
        "API server, marks: works again",
    ]
    assert worker.failure is None


def test_a_bug_ends_the_thread_and_is_kept(worker: Worker) -> None:
    bug = KeyError("x")
    ran: list[int] = []
    worker.submit(lambda: fail(bug))
    worker.submit(lambda: ran.append(1))
    eventually("the failure", lambda: worker.failure is bug)
    assert ran == []


def test_periodic_jobs_run_at_once_and_again(
    worker: Worker, advance: Callable[[float], None]
) -> None:
    ran: list[str] = []
    worker.submit_periodic(0.05, lambda: ran.append("often"))
    worker.submit_periodic(3600, lambda: ran.append("rare"))
    turn(worker)
    assert ran == ["often", "rare"]
    for times in range(2, 6):
        advance(0.03)
        turn(worker)
        assert ran.count("often") == times - 1
        advance(0.03)
        turn(worker)
        assert ran.count("often") == times
    assert ran.count("rare") == 1


def test_a_periodic_job_runs_without_any_other(worker: Worker) -> None:
    ran: list[bool] = []
    worker.submit_periodic(0.01, lambda: ran.append(True))
    eventually("some runs", lambda: len(ran) >= 5)


def test_a_periodic_job_that_fails_is_retried_after_the_wait_that_the_server_asks_for(
    worker: Worker, advance: Callable[[float], None]
) -> None:
    tries: list[bool] = []

    def job() -> None:
        tries.append(True)
        if len(tries) == 1:
            raise ApiError(429, "TooManyRequests", "later", 20.0)

    worker.submit_periodic(0.01, job)
    turn(worker)
    advance(19.9)
    turn(worker)
    assert len(tries) == 1
    advance(1.1)  # the jitter of the first wait is a second at most
    turn(worker)
    assert len(tries) == 2
    advance(0.01)
    turn(worker)
    assert len(tries) == 3


def test_a_job_submitted_as_first_runs_before_all_waiting_jobs(worker: Worker) -> None:
    ran: list[str] = []
    go = block(worker)
    for _ in range(1000):
        worker.submit(lambda: ran.append("event"))
    assert worker.submit(lambda: ran.append("urgent"), first=True)
    go.set()
    worker.close(DEADLINE_S)
    assert ran == ["urgent", *["event"] * 1000]


def test_periodic_jobs_run_although_the_queue_is_never_empty(
    worker: Worker,
) -> None:
    due: list[int] = []

    def again() -> None:
        worker.submit(again)
        worker.submit(lambda: None)

    again()
    worker.submit_periodic(0.01, lambda: due.append(1))
    eventually("the periodic job", lambda: len(due) >= 3)


def test_jobs_beyond_the_maximum_are_dropped(worker: Worker) -> None:
    done: list[int] = []
    go = block(worker)
    accepted = [worker.submit(lambda: done.append(1)) for _ in range(1500)]
    assert accepted == [True] * 1000 + [False] * 500
    go.set()
    eventually("the jobs", lambda: len(done) == 1000)


def test_waiting_jobs_run_before_the_end(worker: Worker) -> None:
    done: list[int] = []
    worker.submit_periodic(0.01, lambda: None)
    go = block(worker)
    for number in range(20):
        worker.submit(partial(done.append, number))
    closing = threading.Thread(target=worker.close, args=(2 * DEADLINE_S,))
    closing.start()
    eventually("the end is near", lambda: not worker.submit(lambda: None))
    assert done == []
    go.set()
    closing.join()
    assert done == list(range(20))


def test_the_end_does_not_wait_for_a_server_that_hangs(tmp_path: Path) -> None:
    with PodServer(tmp_path) as server:
        server.script = [server.hang] * 3
        api = Api(server.kubeconfig, Limits(answer_s=2 * DEADLINE_S))
        worker = Worker(api)
        ended: list[str] = []

        def ask() -> None:
            try:
                api.delete("/api/v1/pods/x")
            except ApiUnreachable as error:
                ended.append(str(error))

        for _ in range(3):
            worker.submit(ask)
        eventually("a request", lambda: server.requests)
        worker.close(0.2)
        assert not any(thread.name == "kube-worker" for thread in threading.enumerate())
    assert ended and set(ended) == {"aborted by the agent"}


def test_a_request_that_hangs_leaves_time_for_the_waiting_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PodServer(tmp_path) as server:
        server.script = [server.hang]
        api = Api(server.kubeconfig)
        worker = Worker(api)

        def ask() -> None:
            api.get("/api/v1/pods/x")

        worker.submit_periodic(60, ask)
        eventually("a request", lambda: server.requests)
        last: list[int] = []
        worker.submit(lambda: last.append(1), first=True)
        # Half of the time each, but on a busy machine the waiting one needs more than its half.
        join, halves = worker._thread.join, iter((0.1, DEADLINE_S))
        asked: list[float | None] = []

        def wait(timeout: float | None = None) -> None:
            asked.append(timeout)
            join(next(halves, timeout))

        monkeypatch.setattr(worker._thread, "join", wait)
        worker.close(1.0)
        assert last == [1]
        assert asked[:2] == [0.5, 0.5]
