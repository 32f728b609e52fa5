# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A status server on a free port, and what it publishes."""

from collections.abc import Iterator

import pytest

from controller.core.units import NS_PER_SEC
from controller.demo.programs import free_port
from controller.telemetry.http import StatusServer
from controller.telemetry.report import PublishedState
from tests.support.waiting import DEADLINE_S


@pytest.fixture
def published() -> PublishedState:
    return PublishedState()


@pytest.fixture
def served(published: PublishedState) -> Iterator[tuple[StatusServer, int]]:
    number = free_port()
    # As long as a test waits: on a busy machine the answer may take longer than a second.
    healthy_ns = round(DEADLINE_S) * NS_PER_SEC
    server = StatusServer(published, ("127.0.0.1", number), healthy_ns=healthy_ns)
    yield server, number
    server.close()


@pytest.fixture
def server(served: tuple[StatusServer, int]) -> StatusServer:
    return served[0]


@pytest.fixture
def port(served: tuple[StatusServer, int]) -> int:
    return served[1]
