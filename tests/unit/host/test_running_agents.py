# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Agents are found by root's processes that hold the lock of a state directory."""

from collections.abc import Callable
import os
from pathlib import Path
import subprocess
import sys

import pytest

from controller.host import running_agents as module
from controller.host.running_agents import RunningAgent, running_agents
from controller.host.state_dir import Lock

# The whole search needs root, as the agent does.
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

Process = Callable[..., Path]


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    """Makes a process in a /proc of this test, with the descriptors of this process."""
    proc = tmp_path / "proc"
    proc.mkdir()
    monkeypatch.setattr(module, "PROC", proc)

    def make(*words: str, pid: int = os.getpid(), fds: tuple[int, ...] = ()) -> Path:
        made = proc / str(pid)
        (made / "fd").mkdir(parents=True)
        (made / "cmdline").write_bytes(b"".join(os.fsencode(word) + b"\0" for word in words))
        (made / "cwd").symlink_to("/srv")
        (made / "ns").mkdir()
        (made / "ns" / "net").symlink_to("/proc/self/ns/net")
        for fd in fds:
            (made / "fd" / str(fd)).symlink_to(Path(f"/proc/self/fd/{fd}").readlink())
        return made

    return make


@pytest.fixture
def lock(tmp_path: Path) -> Lock:
    return Lock(tmp_path / "state")


@pytest.mark.parametrize(
    ("words", "config"),
    [
        (["/opt/bin/python", "/opt/bin/sweetpoint", "run"], None),
        (["/opt/bin/sweetpoint", "--verbose", "run", "--config", "/etc/a.yaml"], "/etc/a.yaml"),
        (["python", "-m", "controller.cli.main", "run", "--config=b.yaml"], "/srv/b.yaml"),
        (["python", "-P", "x.py", "controller.cli.main", "run", "--conf", "c"], "/srv/c"),
        (["sweetpoint", "run", "--mode", "observe", "--once", "--config"], None),
    ],
)
def test_an_agent_is_found_with_its_configuration(
    process: Process, lock: Lock, words: list[str], config: str | None
) -> None:
    process(*words, fds=(lock.fileno(),))
    expected = None if config is None else Path(config)
    assert running_agents() == [RunningAgent(lock.directory, expected)]


@pytest.mark.parametrize(
    "words",
    [
        ["sweetpoint", "top"],
        ["vi", "run"],
        ["sh", "-c", "sleep 1", "x", "sweetpoint", "run"],
        [],
        ["\0\udcff"],
    ],
)
def test_another_process_is_none(process: Process, lock: Lock, words: list[str]) -> None:
    process(*words, fds=(lock.fileno(),))
    assert running_agents() == []


def test_a_command_line_alone_is_none(process: Process, lock: Lock, tmp_path: Path) -> None:
    """A tenant's container can have any: the lock must name the process."""
    made = process("sweetpoint", "run", "--config", "/evil.yaml")
    assert running_agents() == []
    # Not the lock that it seems to be, as in another mount namespace.
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "lock").touch()
    (made / "fd" / "3").symlink_to(tmp_path / "gone" / "lock")
    (made / "fd" / "4").symlink_to(tmp_path / "other" / "lock")
    assert running_agents() == []


def test_a_process_that_the_lock_does_not_name_is_none(process: Process, lock: Lock) -> None:
    process("sweetpoint", "run", pid=1, fds=(lock.fileno(),))
    assert running_agents() == []


def test_one_of_another_user_is_none(process: Process, lock: Lock) -> None:
    os.chown(process("sweetpoint", "run", fds=(lock.fileno(),)), 65534, 65534)
    assert running_agents() == []


def test_one_of_another_network_is_none(process: Process, lock: Lock) -> None:
    made = process("sweetpoint", "run", fds=(lock.fileno(),))
    (made / "ns" / "net").unlink()
    (made / "ns" / "net").touch()
    assert running_agents() == []


def test_a_process_of_this_host_is_found(tmp_path: Path) -> None:
    """With the real /proc; other agents may run on this host."""
    script = (
        "import sys, pathlib\n"
        "from controller.host.state_dir import Lock\n"
        f"lock = Lock(pathlib.Path({str(tmp_path / 'real')!r}))\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    main = tmp_path / "main.py"
    main.write_text(script)
    words = [sys.executable, str(main), "run", "--config", "own.yaml"]
    with subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = running_agents()
    assert RunningAgent(tmp_path / "real", Path.cwd() / "own.yaml") in found
    assert RunningAgent(tmp_path / "real", Path.cwd() / "own.yaml") not in running_agents()
