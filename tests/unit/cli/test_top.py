# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint top`` as a command: in a pipe, on a terminal, and with wrong options."""

from collections.abc import Iterator
import json
import os
from pathlib import Path
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time

import pytest

from controller.cli.main import main
from controller.demo.programs import free_port
from controller.telemetry.http import StatusServer
from tests.support.waiting import DEADLINE_S
from tests.unit.cli.published import page, published


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def server(port: int) -> Iterator[StatusServer]:
    server = StatusServer(published(), ("127.0.0.1", port), healthy_ns=10**9)
    yield server
    server.close()


@pytest.fixture
def agent(port: int, server: StatusServer) -> str:
    return f"http://127.0.0.1:{port}"


def test_in_a_pipe_it_prints_plain_lines(agent: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--url", agent]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "service web runq_p99 3ms of 2ms (1.50 times) [#####!....] cpu fresh" in lines
    assert "workload job 0.50cpu, idle, uses -, 80% of what hurts web" in lines
    assert "channel cpu squeeze 20% web, quota 0.50cpu on 1 cgroup" in lines
    assert main(["top", "--once", "--raw", "--url", agent]) == 0
    assert json.loads(capsys.readouterr().out)["mode"] == "enforce"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file or directory"),
        ("secret-part-one\nsecret-part-two\n", "must have one line"),
        ("geheim-ü", "not ASCII text"),
    ],
)
def test_a_bad_token_is_named_and_not_shown(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_text(content)
    arguments = ["--url", "http://127.0.0.1:1", "--token-file", str(token)]
    assert main(["top", "--once", *arguments]) == 1
    shown = capsys.readouterr().err
    assert shown == f"sweetpoint: --token-file {token}: {message}\n"


def test_the_address_and_the_token_are_those_of_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    token, config = tmp_path / "token", tmp_path / "config.yaml"
    token.write_text("secret-of-sixteen-characters\n")
    config.write_text(
        f"http: 0.0.0.0:{port}\nhttp_token_file: {token}\n"
        "workloads: [{name: a, cgroup: /a, class: best-effort}]\n"
    )
    address = ("127.0.0.1", port)
    server = StatusServer(published(), address, healthy_ns=10**9, token_file=token)
    try:
        assert main(["top", "--once", "--config", str(config)]) == 0
        assert "service web" in capsys.readouterr().out
        assert main(["top", "--once", "--url", f"http://127.0.0.1:{port}"]) == 1
        assert "see --token-file" in capsys.readouterr().err
    finally:
        server.close()
    assert main(["top", "--once", "--config", str(config)]) == 1
    assert "does the agent run?" in capsys.readouterr().err


def test_a_reason_from_a_server_has_no_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"\x1b]0;title\x07 no HTTP\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert main(["top", "--once", "--url", f"http://127.0.0.1:{server.getsockname()[1]}"]) == 1
        thread.join()
    text = capsys.readouterr().err
    assert "title" in text and text.strip().isprintable()


def test_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", "file:///etc/passwd"]) == 1
    assert main(["top", "--config", str(tmp_path / "missing.yaml")]) == 2
    assert main(["top", "--interval", "0", "--url", "http://127.0.0.1:1"]) == 2
    assert capsys.readouterr().out == ""


KUBECTL = """\
#!/bin/sh
case "$1" in
get) [ "$6" != "--field-selector=spec.nodeName=n1,status.phase=Running" ] || echo ns agent-x ;;
exec)
    run="/opt/sweetpoint/bin/sweetpoint top --raw --interval 2"
    [ "$*" = "exec -n ns agent-x -- $run" ] && cat page && exec sleep 60
    [ "$*" = "exec -n ns agent-x -- $run --once" ] && head -n 1 page ;;
esac
"""


def test_the_agent_of_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    pages = [page(published(10**9, 10**9)), page(published(3 * 10**9, 2 * 10**9))]
    (tmp_path / "page").write_text("".join(f"{json.dumps(each)}\n" for each in pages))
    assert main(["top", "--once", "--node", "n1"]) == 0
    out = capsys.readouterr().out
    assert "workload job 0.50cpu, idle, uses 0.50cpu" in out and out.count("service web") == 1
    assert main(["top", "--once", "--raw", "--node", "n1"]) == 0
    assert json.loads(capsys.readouterr().out) == pages[0]
    assert main(["top", "--once", "--node", "n2"]) == 1
    assert "no agent runs on node 'n2'" in capsys.readouterr().err
    (tmp_path / "page").write_text("<html>\n")
    assert main(["top", "--once", "--node", "n1"]) == 1
    assert "not a page of an agent" in capsys.readouterr().err


class Terminal:
    """``sweetpoint top`` on a terminal of *columns* times *lines*; ``shown`` is its output."""

    def __init__(self, url: str, columns: int = 100, lines: int = 30) -> None:
        self.master, self.slave = pty.openpty()
        termios.tcsetwinsize(self.slave, (lines, columns))
        self.before = termios.tcgetattr(self.slave)
        self.shown = b""
        command = [sys.executable, "-m", "controller.cli.main", "top", "--interval", "0.2"]
        environment = {**os.environ, "TERM": "xterm"}
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [*command, "--url", url],
            stdin=self.slave,
            stdout=self.slave,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def read_until(self, wanted: bytes) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while wanted not in self.shown:
            assert time.monotonic() < deadline, self.shown
            ready, _, _ = select.select([self.master], [], [], 1.0)
            if ready:
                self.shown += os.read(self.master, 65536)

    def check_it_is_as_before(self) -> None:
        """Check that the other screen was left, and that keys are shown again."""
        self.read_until(b"\x1b[?1049l")
        assert b"\x1b[?25h" in self.shown.rpartition(b"\x1b[?25l")[2]
        assert termios.tcgetattr(self.slave) == self.before


@pytest.fixture
def terminal(agent: str, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    terminal = Terminal(agent, *getattr(request, "param", ()))
    yield terminal
    terminal.process.kill()
    terminal.process.wait()
    os.close(terminal.master)
    os.close(terminal.slave)


def test_on_a_terminal_it_draws_and_obeys_keys(terminal: Terminal) -> None:
    terminal.read_until(b"order (harm)")
    assert b"runq_p99" in terminal.shown and b"3ms" in terminal.shown
    assert b"\x1b[31m]" not in terminal.shown
    terminal.type(b"s")
    terminal.read_until(b"order (use)")
    # Pasted at once, so that one read(2) returns all of it.
    terminal.type(b"/job\ns")
    terminal.read_until(b"order (name)  /: filter (*job*)")
    terminal.type(b"q")
    assert terminal.process.wait(DEADLINE_S) == 0
    terminal.check_it_is_as_before()


def test_an_interrupt_leaves_the_terminal_as_before(terminal: Terminal) -> None:
    terminal.read_until(b"order (harm)")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.process.wait(DEADLINE_S) == 130
    terminal.check_it_is_as_before()
    assert b"Traceback" not in terminal.shown


@pytest.mark.parametrize("terminal", [(1, 1), (8, 3), (400, 2)], indirect=True)
def test_a_tiny_terminal(terminal: Terminal) -> None:
    terminal.read_until(b"\x1b[?1049h")
    terminal.type(b"sd/x\nq")
    assert terminal.process.wait(DEADLINE_S) == 0
    terminal.check_it_is_as_before()
    assert b"Traceback" not in terminal.shown


def test_an_agent_that_ends_is_told(terminal: Terminal, server: StatusServer) -> None:
    terminal.read_until(b"order (harm)")
    server.close()
    terminal.read_until(b"not live: ")
    terminal.type(b"s")  # keys still work
    terminal.read_until(b"order (use)")
    terminal.type(b"q")
    assert terminal.process.wait(DEADLINE_S) == 0
