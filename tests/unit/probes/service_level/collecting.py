# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Sources, and what services send and a collector knows of them."""

import os
from pathlib import Path
import socket
import time

from controller.config.sections.service_sources import (
    Endpoint,
    JsonField,
    Push,
    ServiceSource,
)
from controller.core.model import ServiceReading
from controller.core.units import NS_PER_MS, NS_PER_SEC
from controller.probes.service_level.collector import ServiceLevels
from controller.probes.service_level.ledger import ServiceState
from tests.support.http.raw_server import RawHttpServer
from tests.support.waiting import DEADLINE_S

NOBODY = 65534
# What a busy machine cannot reach.
LONG_NS = round(DEADLINE_S) * NS_PER_SEC


def pushes(service: str, *users: str | int, max_age_ns: int = LONG_NS) -> ServiceSource:
    return ServiceSource(
        service=service,
        source=Push(users=users or ("root",)),
        unit_ns=NS_PER_MS,
        every_ns=NS_PER_SEC,
        timeout_ns=NS_PER_SEC,
        max_age_ns=max_age_ns,
    )


def polls(server: RawHttpServer, service: str = "web", timeout_ns: int = LONG_NS) -> ServiceSource:
    endpoint = Endpoint(url=server.url, token_file=None, header_files=(), ca_file=None)
    return ServiceSource(
        service=service,
        source=JsonField(endpoint=endpoint, pointer="/a"),
        unit_ns=None,
        every_ns=100 * NS_PER_MS,
        timeout_ns=timeout_ns,
        max_age_ns=LONG_NS,
    )


def send(place: Path, *data: bytes, uid: int = 0) -> None:
    """Send datagrams from a process of user *uid*."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgid(uid)
            os.setuid(uid)
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                for one in data:
                    sender.sendto(one, str(place))
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def reading(levels: ServiceLevels, service: str) -> ServiceReading:
    return next(r for r in levels.poll(time.monotonic_ns()) if r.service == service)


def state(levels: ServiceLevels, service: str) -> ServiceState:
    return next(s for s in levels.states(time.monotonic_ns()) if s.service == service)
