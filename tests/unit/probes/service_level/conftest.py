# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A socket for pushes, and a collector that listens to it."""

from collections.abc import Iterator
from pathlib import Path
import tempfile

import pytest

from controller.config.sections.service_sources import ServiceLevelConfig
from controller.probes.service_level.collector import ServiceLevels
from tests.unit.probes.service_level.collecting import NOBODY, pushes


@pytest.fixture
def place() -> Iterator[Path]:
    """The path of a socket in a directory that every user may enter.

    Short, because the kernel limits paths of sockets to 108 bytes.
    """
    with tempfile.TemporaryDirectory(prefix="sweetpoint-") as name:
        Path(name).chmod(0o755)
        yield Path(name) / "deep" / "socket"


@pytest.fixture
def levels(place: Path) -> Iterator[ServiceLevels]:
    sources = (pushes("web"), pushes("shop cart", NOBODY), pushes("old", max_age_ns=1))
    opened = ServiceLevels(ServiceLevelConfig(socket=place, group=None, sources=sources))
    assert place.is_socket()
    yield opened
    opened.close()
