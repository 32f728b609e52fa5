# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The worker thread: order of jobs, failures, and its end."""

from collections.abc import Iterator
import itertools
import logging
from pathlib import Path
import threading
import time

import pytest

from controller.kube.client.api import Api
from controller.kube.client.errors import ApiError, ApiUnreachable
from controller.kube.client.worker import Worker
from tests.support.kube.pod_server import PodServer
from tests.support.waiting import eventually


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker(Api(Path("/nonexistent")))
    yield worker
    worker.close(0.1)
    assert not any(thread.name == "kube-worker" for thread in threading.enumerate())


def fail(error: Exception) -> None:
    raise error


def block(worker: Worker) -> threading.Event:
    """Make the worker wait for the returned event, and return when it does."""
    started, go = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        go.wait(30)

    worker.submit(wait)
    assert started.wait(30)
    return go


def test_jobs_run_in_order_in_one_other_thread(worker: Worker) -> None:
    done: list[tuple[int, int]] = []
    for number in range(50):
        assert worker.submit(lambda number=number: done.append((number, threading.get_ident())))
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


def test_periodic_jobs_run_at_once_and_again(worker: Worker) -> None:
    ran: list[float] = []
    worker.submit_periodic(0.05, lambda: ran.append(time.monotonic()))
    worker.submit_periodic(3600, lambda: ran.append(0.0))
    eventually("some", lambda: len(ran) >= 5)
    assert ran.count(0.0) == 1
    times = [at for at in ran if at]
    assert all(later - earlier >= 0.05 for earlier, later in itertools.pairwise(times))


def test_a_periodic_job_that_fails_is_retried_after_the_wait_that_the_server_asks_for(
    worker: Worker,
) -> None:
    tries: list[float] = []

    def job() -> None:
        tries.append(time.monotonic())
        if len(tries) == 1:
            raise ApiError(429, "TooManyRequests", "later", 0.5)

    worker.submit_periodic(0.01, job)
    eventually("it works", lambda: len(tries) >= 3)
    assert tries[1] - tries[0] >= 0.5


def test_a_job_submitted_as_first_runs_before_all_waiting_jobs(worker: Worker) -> None:
    ran: list[str] = []
    go = block(worker)
    for _ in range(1000):
        worker.submit(lambda: ran.append("event"))
    assert worker.submit(lambda: ran.append("urgent"), first=True)
    go.set()
    worker.close(10)
    assert ran == ["urgent", *["event"] * 1000]


def test_periodic_jobs_run_although_the_queue_is_never_empty(
    worker: Worker,
) -> None:
    due: list[int] = []

    def again() -> None:
        time.sleep(0.001)
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

    def slow(number: int) -> None:
        time.sleep(0.005)
        done.append(number)

    for number in range(20):
        worker.submit(lambda number=number: slow(number))
    worker.close(10)
    assert done == list(range(20))
    assert not worker.submit(lambda: None)


def test_the_end_does_not_wait_for_a_server_that_hangs(tmp_path: Path) -> None:
    ran: list[int] = []
    with PodServer(tmp_path) as server:
        server.script = [server.hang] * 3
        api = Api(server.kubeconfig)
        worker = Worker(api)
        for _ in range(3):
            worker.submit(lambda: api.delete("/api/v1/pods/x"))
        worker.submit(lambda: ran.append(1))
        eventually("a request", lambda: server.requests)
        began = time.monotonic()
        worker.close(0.2)
        assert time.monotonic() - began < 8
        assert not any(thread.name == "kube-worker" for thread in threading.enumerate())
    assert ran == []


def test_a_request_that_hangs_leaves_time_for_the_waiting_ones(tmp_path: Path) -> None:
    with PodServer(tmp_path) as server:
        server.script = [server.hang]
        api = Api(server.kubeconfig)
        worker = Worker(api)
        worker.submit_periodic(60, lambda: api.get("/api/v1/pods/x"))
        eventually("a request", lambda: server.requests)
        last: list[int] = []
        worker.submit(lambda: last.append(1), first=True)
        worker.close(1.0)
        assert last == [1]
