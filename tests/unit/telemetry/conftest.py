# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A status server on a free port, and what it publishes."""

from collections.abc import Iterator
import socket

import pytest

from controller.core.units import NS_PER_SEC
from controller.telemetry.http import StatusServer
from controller.telemetry.report import PublishedState


@pytest.fixture
def published() -> PublishedState:
    return PublishedState()


@pytest.fixture
def served(published: PublishedState) -> Iterator[tuple[StatusServer, int]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number = probe.getsockname()[1]
    # A minute: on a busy machine the answer to a request may take longer than a second.
    server = StatusServer(published, ("127.0.0.1", number), healthy_ns=60 * NS_PER_SEC)
    yield server, number
    server.close()


@pytest.fixture
def server(served: tuple[StatusServer, int]) -> StatusServer:
    return served[0]


@pytest.fixture
def port(served: tuple[StatusServer, int]) -> int:
    return served[1]
