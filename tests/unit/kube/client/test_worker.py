# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The thread for requests: in order, through failures, and to its end."""

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
from tests.kernel.agent import eventually
from tests.pod_server import PodServer


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker(Api(Path("/nonexistent")))
    yield worker
    worker.close(0.1)
    assert not any(thread.name == "kube-worker" for thread in threading.enumerate())


def fail(error: Exception) -> None:
    raise error


def test_jobs_run_in_order_in_one_other_thread(worker: Worker) -> None:
    done: list[tuple[int, int]] = []
    for number in range(50):
        assert worker.submit(lambda number=number: done.append((number, threading.get_ident())))
    eventually("all", 10, lambda: len(done) == 50)
    assert [number for number, _ in done] == list(range(50))
    assert {ident for _, ident in done} != {threading.get_ident()}
    assert len({ident for _, ident in done}) == 1


def test_what_the_server_refuses_is_counted_and_told_once(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(5):
        worker.submit(lambda: fail(ApiError(403, "Forbidden", "no")), "marks")
    worker.submit(lambda: fail(ApiUnreachable("away")), "marks")
    worker.submit(lambda: fail(ApiUnreachable("away")), "events")
    eventually("all", 10, lambda: sum(worker.errors.values()) == 7)
    assert worker.errors == {"403": 5, "unreachable": 2}
    assert worker.problems == {"marks": "away", "events": "away"}
    worker.submit(lambda: None, "marks")
    eventually("no trouble", 10, lambda: "marks" not in worker.problems)
    assert [record.getMessage() for record in caplog.records] == [
        "API server, marks: 403 Forbidden: no",
        "API server, marks: away",
        "API server, events: away",
        "API server, marks: works again",
    ]
    assert worker.failure is None


def test_a_bug_ends_it_and_is_there_to_be_raised(worker: Worker) -> None:
    bug = KeyError("x")
    ran: list[int] = []
    worker.submit(lambda: fail(bug))
    worker.submit(lambda: ran.append(1))
    eventually("the failure", 10, lambda: worker.failure is bug)
    assert ran == []


def test_periodic_jobs_run_at_once_and_again(worker: Worker) -> None:
    ran: list[float] = []
    worker.submit_periodic(0.05, lambda: ran.append(time.monotonic()))
    worker.submit_periodic(3600, lambda: ran.append(0.0))
    eventually("some", 10, lambda: len(ran) >= 5)
    assert ran.count(0.0) == 1
    times = [at for at in ran if at]
    assert all(later - earlier >= 0.05 for earlier, later in itertools.pairwise(times))


def test_a_periodic_job_that_fails_is_tried_again_but_not_in_a_hurry(worker: Worker) -> None:
    tries: list[float] = []

    def job() -> None:
        tries.append(time.monotonic())
        if len(tries) == 1:
            raise ApiError(429, "TooManyRequests", "later", 0.5)

    worker.submit_periodic(0.01, job)
    eventually("it works", 10, lambda: len(tries) >= 3)
    assert tries[1] - tries[0] >= 0.5


def test_what_is_urgent_goes_before_all_that_waits(worker: Worker) -> None:
    ran: list[str] = []
    go = threading.Event()
    worker.submit(lambda: bool(go.wait(10)))
    eventually("it waits", 10, lambda: worker.waiting == 0)
    for _ in range(1000):
        worker.submit(lambda: ran.append("event"))
    assert worker.submit(lambda: ran.append("urgent"), first=True)
    go.set()
    worker.close(10)
    assert ran == ["urgent", *["event"] * 1000]


def test_a_queue_that_never_empties_does_not_keep_what_is_due_from_running(
    worker: Worker,
) -> None:
    due: list[int] = []

    def again() -> None:
        time.sleep(0.001)
        worker.submit(again)
        worker.submit(lambda: None)

    again()
    worker.submit_periodic(0.01, lambda: due.append(1))
    eventually("the due ones", 10, lambda: len(due) >= 3)


def test_too_many_jobs_are_dropped_and_counted(worker: Worker) -> None:
    go = threading.Event()
    worker.submit(lambda: bool(go.wait(10)))
    eventually("it waits", 10, lambda: worker.waiting == 0)
    taken = sum(worker.submit(lambda: None) for _ in range(1500))
    assert (taken, worker.dropped, worker.waiting) == (1000, 500, 1000)
    go.set()
    eventually("done", 10, lambda: worker.waiting == 0)


def test_what_was_submitted_is_done_before_the_end(worker: Worker) -> None:
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
        eventually("a request", 10, lambda: server.requests)
        began = time.monotonic()
        worker.close(0.2)
        assert time.monotonic() - began < 1.5
        assert not any(thread.name == "kube-worker" for thread in threading.enumerate())
    assert ran == []
