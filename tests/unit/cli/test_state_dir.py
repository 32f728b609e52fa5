# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How release, pause and resume find the agent, and the names that a pause may have."""

import ast
from collections.abc import Iterator
import os
from pathlib import Path
import re
import shlex
import time

import pytest

from controller.cli import common, release
from controller.cli.common import clock
from controller.cli.main import main, parser
from controller.config import state_dir as state_dir_module
from controller.core.model import CgroupId, QosClass, Target, TargetKind, Workload
from controller.demo.programs import free_port
from controller.host.pause_file import read_pauses
from controller.host.state_dir import Lock, LockError, release_command
from controller.telemetry.http import StatusServer
from controller.telemetry.report import PublishedState
from tests.support.reports import report

ROOT = Path(__file__).parents[3]
COMMANDS = ("release", "pause", "resume")
HOG = "{name: batch, cgroup: /batch/*, class: best-effort}"


class Host:
    """A host whose configuration and usual directory lie below *home*."""

    def __init__(self, home: Path) -> None:
        self.config, self.usual, self.state = home / "config.yaml", home / "usual", home / "state"
        self.port = free_port()

    def configure(self, state: object) -> None:
        self.config.write_text(
            f"state_dir: {state}\nhttp: 127.0.0.1:{self.port}\nworkloads: [{HOG}]\n"
        )

    def paused(self, state: Path) -> list[tuple[str, str]]:
        return [each[:2] for each in read_pauses(state, time.time())]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host(tmp_path)
    monkeypatch.setattr(common, "_CONFIG", host.config)
    # It is one for the whole host.
    monkeypatch.setattr(release, "_remove_own_cgroup", lambda: True)
    monkeypatch.setattr(state_dir_module, "DEFAULT_STATE_DIR", str(host.usual))
    return host


@pytest.mark.parametrize("command", COMMANDS)
def test_the_directory_is_that_of_the_configuration(
    host: Host, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    host.configure(host.state)
    said = {"release": "nothing to restore", "pause": "everything", "resume": "resumed: everything"}
    assert main(["pause"]) == 0
    assert host.paused(host.state) == [("everything", "")]
    assert main([command]) == 0
    assert said[command] in capsys.readouterr().out
    assert not host.usual.exists()
    assert bool(host.paused(host.state)) == (command != "resume")


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_configuration_it_is_the_usual_one(host: Host, command: str) -> None:
    assert main([command]) == 0
    assert host.usual.exists() == (command == "pause")  # an agent that is started will find it


@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistyped_directory_is_an_error_and_not_made(
    host: Host, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mistyped = tmp_path / "mistyped"
    assert main([command, "--state-dir", str(mistyped)]) == 2
    assert f"--state-dir {mistyped}: there is no such directory" in capsys.readouterr().err
    assert not mistyped.exists()
    assert main([command, "--config", str(mistyped)]) == 2
    assert not host.usual.exists()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("damage", ["state_dir: [", "state_dir: run", "state_dir: 7", "- 1"])
def test_a_damaged_configuration_is_an_error_with_a_way_out(
    host: Host, command: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    host.config.write_text(damage)
    assert main([command]) == 2
    assert "can be named with --state-dir instead" in capsys.readouterr().err
    host.state.mkdir()
    assert main([command, "--state-dir", str(host.state)]) == 0


def test_each_command_has_its_own_help(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for command in ("pause", "resume"):
        with pytest.raises(SystemExit):
            parser([command]).parse_args([command, "--help"])
        texts.append(" ".join(capsys.readouterr().out.split()))
    assert "not protected then" in texts[0]
    assert "end the pause of this service" in texts[1]
    assert "not protected then" not in texts[1]
    assert "not touched then" not in texts[1]


@pytest.fixture
def agent(host: Host) -> Iterator[Host]:
    """A host whose agent answers, and holds the lock."""
    host.configure(host.state)
    pod = Target(TargetKind.CGROUP, "cpu", 9, "/kubepods/pod1")
    kinds = (
        ("batch:encode.service", QosClass.BE, "batch", None),
        ("shop/job-1/main", QosClass.BE, "shop/job-1", pod),
        ("web-1", QosClass.LS, "web", None),
        ("kubelet", QosClass.SYSTEM, "kubelet", None),
    )
    workloads = tuple(
        Workload(
            name=name,
            cgroup=CgroupId("cpu", number),
            path=f"/{number}",
            qos=qos,
            service=service,
            profile="",
            container_of=container_of,
        )
        for number, (name, qos, service, container_of) in enumerate(kinds)
    )
    published = PublishedState(report=report(time.monotonic_ns(), workloads=workloads))
    server = StatusServer(published, ("127.0.0.1", host.port), healthy_ns=10**9)
    lock = Lock(host.state)
    try:
        yield host
    finally:
        lock.close()
        server.close()


@pytest.mark.parametrize(
    "names",
    [
        ["--workload", "batch"],
        ["--workload", "batch:encode.service"],
        ["--workload", "shop/job-1", "--service", "web"],
    ],
)
def test_a_name_that_the_agent_knows_is_paused(agent: Host, names: list[str]) -> None:
    assert main(["pause", *names]) == 0
    assert {name for _, name in agent.paused(agent.state)} == set(names[1::2])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["--workload", "btach"], "no best-effort workload 'btach' now; did you mean batch?"),
        (["--workload", "shop/job-2"], "did you mean shop/job-1?"),
        (["--service", "wep"], "there is no service 'wep' now; did you mean web?"),
        (["--service", "batch"], "there is no service 'batch' now"),
        (["--workload", "web"], "there is no best-effort workload 'web' now"),
        (["--workload", "kubelet"], "there is no best-effort workload 'kubelet' now"),
        (["--workload", "batch", "--workload", "\x1b[2J"], r"'\x1b[2J' now"),
    ],
)
def test_a_name_that_it_does_not_know_is_refused(
    agent: Host, names: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pause", *names]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""
    assert not agent.paused(agent.state)


def test_an_agent_that_cannot_be_asked_is_paused_with_a_note(
    host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    host.configure(host.state)
    lock = Lock(host.state)
    try:
        assert main(["pause", "--workload", "btach"]) == 0
        assert "the names are not compared with the agent's" in capsys.readouterr().err
        # The configuration of one agent, the directory of another.
        host.configure(host.usual)
        assert main(["pause", "--state-dir", str(host.state), "--workload", "btach"]) == 0
        assert "is of an agent with another state_dir" in capsys.readouterr().err
    finally:
        lock.close()


def test_the_command_that_a_message_suggests_reaches_the_same_agent(tmp_path: Path) -> None:
    state = tmp_path / "a state"
    lock = Lock(state)
    with pytest.raises(LockError, match=f"\\({os.getpid()} holds") as error:
        Lock(state)
    lock.close()
    command = release_command(state, "--stop")
    assert f"stop it with '{command}', or" in str(error.value)
    program, *words = shlex.split(command)
    assert program == "sweetpoint"
    arguments = parser(["release"]).parse_args(words)
    assert (arguments.state_dir, arguments.stop) == (state, True)


def test_each_message_with_this_command_names_the_directory() -> None:
    assert release_command(Path("/run/x")) == "sweetpoint release --state-dir /run/x"
    found = {
        str(file.relative_to(ROOT))
        for room in ("controller", "actuators")
        for file in (ROOT / room).rglob("*.py")
        for text in strings(ast.parse(file.read_text()))
        if "sweetpoint release" in text
    }
    # The cgroup of the agent is one for the host, whatever the state directory is.
    assert found == {"controller/host/own_cgroup.py", "controller/cli/release.py"}  # its example


def strings(tree: ast.Module) -> Iterator[str]:
    """Yield the string constants of *tree* that are no docstrings."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in docstrings else None
        if isinstance(text, str):
            yield text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], ["resumed: workload batch", "resumed: service web"]),
        (["--service", "web"], ["resumed: service web", "paused until 20"]),
    ],
)
def test_resume_says_what_it_did(
    host: Host, words: list[str], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    host.configure(host.state)
    assert main(["pause", "--workload", "batch", "--service", "web"]) == 0
    assert main(["resume", "--service", "wbe"]) == 2
    shown = capsys.readouterr()
    assert "service wbe is not paused on this host" in shown.err
    assert main(["resume", *words]) == 0
    *lines, note = capsys.readouterr().out.splitlines()
    assert note.startswith("no agent runs with ")
    assert len(lines) == len(said)
    for text in said:
        assert any(line.startswith(text) for line in lines)
    assert main(["resume"]) == 0
    capsys.readouterr()
    assert main(["resume"]) == 0
    assert capsys.readouterr().out.startswith("nothing was paused\nno agent runs with ")


def test_pauses_are_told_in_the_zone_of_the_host(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TZ", "ABC-1")
    time.tzset()
    try:
        host.configure(host.state)
        assert main(["pause"]) == 0
        shown = capsys.readouterr().out.splitlines()[0]
        assert re.fullmatch(r"paused until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d ABC: everything", shown)
        assert clock(0) == "1970-01-01 01:00:00 ABC"
    finally:
        monkeypatch.undo()
        time.tzset()
