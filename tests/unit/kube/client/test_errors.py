# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Failures are in the log before another thread can read them."""

import logging

from controller.kube.client.errors import ApiError, ApiUnreachable, RequestErrors


class Recorder(logging.Handler):
    """Records each line together with the counts and errors that could be read at that moment."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: RequestErrors | None = None
        self.lines: list[tuple[str, dict[str, int], dict[str, str]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        assert self.errors is not None
        found = dict(self.errors.counts), dict(self.errors.last)
        self.lines.append((record.getMessage(), *found))


def test_a_line_is_logged_before_the_failure_can_be_read() -> None:
    log = logging.Logger("x")
    recorder = Recorder()
    log.addHandler(recorder)
    recorder.errors = errors = RequestErrors(log)
    errors.failed("pods", ApiError(403, "Forbidden", "no"))
    errors.failed("pods", ApiError(403, "Forbidden", "no"))
    errors.failed("events", ApiUnreachable("away"))
    errors.succeeded("pods")
    pods = {"pods": "403 Forbidden: no"}
    assert recorder.lines == [
        ("API server, pods: 403 Forbidden: no", {}, {}),
        ("API server, events: away", {"403": 2}, pods),
        ("API server, pods: works again", {"403": 2, "unreachable": 1}, pods | {"events": "away"}),
    ]
    assert errors.last == {"events": "away"}
