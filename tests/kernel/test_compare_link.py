# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The link of the comparison: its speed, its two directions, and nothing of it afterwards."""

import os
from pathlib import Path
import signal
import socket
import subprocess
import sys
import time

import pytest

from controller.demo.programs import start
from tests.compare.jobs import JOBS
from tests.compare.link import HOST, MBIT, Link
from tests.kernel.netns import entered

pytestmark = pytest.mark.kernel
SECONDS = 3.0


def links() -> str:
    return subprocess.run(("ip", "-br", "link"), capture_output=True, text=True).stdout


def test_an_upload_gets_what_the_port_sends(tmp_path: Path) -> None:
    before, children = links(), set(child_pids())
    job, output = JOBS["upload"], tmp_path / "output"
    with entered("/proc/self/ns/net"), Link(tmp_path) as link:
        assert "up0" in links()
        upload = start("upload", job.command(output), tmp_path)
        began_s = time.monotonic()
        try:
            time.sleep(SECONDS)
            upload.check()
            with socket.create_server((HOST, 0)) as server:
                connect = "import socket, sys; socket.create_connection(sys.argv[1:])"
                port = str(server.getsockname()[1])
                client = link.among_clients((sys.executable, "-c", connect, HOST, port))
                subprocess.run(client, check=True, timeout=30)
        finally:
            upload.stop(signal.SIGINT)
        took_s = time.monotonic() - began_s
        work = job.work(output.read_text())
    assert work is not None
    # Half: on a busy machine; the rest is in the buffers of the sockets.
    assert 0.5 * MBIT / 8 < work / took_s < 1.1 * MBIT / 8
    assert links() == before
    assert set(child_pids()) == children


def child_pids() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
