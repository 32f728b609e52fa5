# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Who reads troubles in another thread finds nothing that is not in the log yet."""

import logging

from controller.kube.client.errors import ApiError, ApiUnreachable, RequestErrors


class Seen(logging.Handler):
    """Writes down each line, with what could be read at that moment."""

    def __init__(self) -> None:
        super().__init__()
        self.troubles: RequestErrors | None = None
        self.lines: list[tuple[str, dict[str, int], dict[str, str]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        assert self.troubles is not None
        found = dict(self.troubles.counts), dict(self.troubles.last)
        self.lines.append((record.getMessage(), *found))


def test_a_line_is_written_before_anybody_can_read_of_it() -> None:
    log = logging.Logger("x")
    seen = Seen()
    log.addHandler(seen)
    seen.troubles = troubles = RequestErrors(log)
    troubles.failed("pods", ApiError(403, "Forbidden", "no"))
    troubles.failed("pods", ApiError(403, "Forbidden", "no"))
    troubles.failed("events", ApiUnreachable("away"))
    troubles.worked("pods")
    pods = {"pods": "403 Forbidden: no"}
    assert seen.lines == [
        ("API server, pods: 403 Forbidden: no", {}, {}),
        ("API server, events: away", {"403": 2}, pods),
        ("API server, pods: works again", {"403": 2, "unreachable": 1}, pods | {"events": "away"}),
    ]
    assert troubles.last == {"events": "away"}
