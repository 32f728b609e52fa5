# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The link of the comparison: its port, its two directions, and nothing of it afterwards."""

from collections.abc import Iterator
import contextlib
import json
import os
from pathlib import Path
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from controller.demo.programs import Process, start
from tests.compare.jobs import JOBS
from tests.compare.link import BUFFER_S, HOST, MBIT, PORT, Link
from tests.kernel.netns import entered, run
from tests.support.cgroups import children_of
from tests.support.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.kernel

UPLOAD = JOBS["upload"]
SECONDS = 3.0


@contextlib.contextmanager
def uploading(home: Path) -> Iterator[tuple[Link, Process]]:
    """Make the link and upload over it; check that nothing of it is left."""
    links, children = run("ip", "-br", "link"), children_of(os.getpid())
    with entered("/proc/self/ns/net"), Link(home) as link:
        upload = start("upload", UPLOAD.command(home / "output"), home)
        try:
            yield link, upload
        finally:
            upload.stop(signal.SIGINT, within_s=DEADLINE_S)
    assert run("ip", "-br", "link") == links
    assert set(children_of(os.getpid())) == set(children)


def qdisc(link: Link) -> dict[str, Any]:
    """Return the qdisc of the port, with its counters."""
    command = ("tc", "-s", "-j", "qdisc", "show", "dev", PORT, "root")
    (found,) = json.loads(run(*link.in_switch(command)))
    return dict(found)


def dropped(link: Link, upload: Process) -> bool:
    upload.check()
    return int(qdisc(link)["drops"]) > 0


@pytest.mark.thorough
def test_an_upload_fills_the_port(tmp_path: Path) -> None:
    with uploading(tmp_path) as (link, upload):
        assert "up0" in run("ip", "-br", "link")
        options = qdisc(link)["options"]
        assert options["rate"] == MBIT * 1_000_000 // 8
        buffer_s = options["lat"] / 1e6 + options["burst"] / options["rate"]
        assert buffer_s == pytest.approx(BUFFER_S, rel=0.01)
        eventually("more than the port sends", lambda: dropped(link, upload))
        with socket.create_server((HOST, 0)) as server:
            connect = "import socket, sys; socket.create_connection(sys.argv[1:])"
            port = str(server.getsockname()[1])
            client = link.among_clients((sys.executable, "-c", connect, HOST, port))
            subprocess.run(client, check=True, timeout=DEADLINE_S)
    assert UPLOAD.work((tmp_path / "output").read_text())


@pytest.mark.timed
def test_an_upload_gets_what_the_port_sends(tmp_path: Path) -> None:
    with uploading(tmp_path) as (_, upload):
        began_s = time.monotonic()
        time.sleep(SECONDS)
        upload.check()
        upload.stop(signal.SIGINT)
        took_s = time.monotonic() - began_s
    work = UPLOAD.work((tmp_path / "output").read_text())
    assert work is not None
    # The rest is in the buffers of the sockets.
    assert 0.5 * MBIT / 8 < work / took_s < 1.1 * MBIT / 8
