# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint status``: what is held now, from an agent that runs and from a journal without."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
import json
import os
from pathlib import Path

import pytest

from actuators.journal import Journal
from actuators.journal_view import view_journal
from actuators.record import Record
from controller.cli.main import main
from controller.core.in_force import InForce
from controller.core.model import Knob, KnobValue, Mode
from controller.demo.programs import free_port
from controller.host import running_agents
from controller.host.pause_file import EVERYTHING, PauseEntry, change_pauses
from controller.host.running_agents import RunningAgent
from controller.host.state_dir import JOURNAL, Lock
from controller.telemetry.http import StatusServer
from controller.telemetry.report import PublishedState
from tests.support.needs import needs_root
from tests.support.reports import JOB
from tests.unit.cli.published import page, published
from tests.unit.cli.test_top import KUBECTL

QUOTA = Record(
    JOB,
    Knob.CPU_QUOTA,
    KnobValue("max 100000 0"),
    KnobValue("max 100000 0"),
    KnobValue("5000 10000 0"),
)
CONFIG = """\
http: 127.0.0.1:{port}
state_dir: {home}/state
workloads: [{{name: a, cgroup: /a, class: best-effort}}]
"""


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def state() -> PublishedState:
    return published(10**9)


@pytest.fixture
def server(port: int, state: PublishedState) -> Iterator[StatusServer]:
    server = StatusServer(state, ("127.0.0.1", port), healthy_ns=10**9)
    yield server
    server.close()


@pytest.fixture
def config(tmp_path: Path, port: int) -> Path:
    (tmp_path / "state").mkdir(mode=0o700)
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(port=port, home=tmp_path))
    return path


@pytest.mark.usefixtures("server")
def test_an_agent_says_how_much_since_when_for_whom_and_why(
    port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--url", f"http://127.0.0.1:{port}"]) == 0
    head, *notes, job, why, title, knob, then = capsys.readouterr().out.splitlines()
    assert head.startswith("enforce mode, ")
    assert head.endswith(": 1 of 1 best-effort workload limited")
    assert r"! paused: service db\x1b" in notes
    assert job.startswith("job: 0.50cpu, limited since ")
    assert job.endswith(" (3s) because of web on cpu")
    assert why == "    why       web runq_p99 3ms > 2ms: demand 0.20"
    assert title == "Held knobs:"
    assert knob.startswith("  cpu.quota of /batch/job: unlimited -> 0.50cpu since ")
    assert knob.endswith(" (1s)")
    assert "sweetpoint explain NAME" in then


@pytest.mark.usefixtures("server")
def test_json_has_the_same_for_programs(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--json", "--url", f"http://127.0.0.1:{port}"]) == 0
    found = json.loads(capsys.readouterr().out)
    (limited,), (knob,) = found["limited"], found["knobs"]
    assert (found["source"], found["mode"], found["best_effort"]) == ("agent", "enforce", 1)
    assert (limited["name"], limited["cpus"], limited["service"]) == ("job", 0.5, "web")
    assert (knob["value"], knob["original"]) == ("0.50cpu", "unlimited")
    worst = found["worst"]
    assert (worst["service"], worst["indicator"], worst["value"]) == ("web", "runq_p99", "3ms")
    assert worst["ratio"] == 1.5
    assert found["paused"] == [r"paused: service db\x1b"]
    assert found["problems"] == ["probe net is off: no cgroup2 tree"]
    assert set(found["notes"]) == {*found["paused"], *found["problems"]}
    since, at = (datetime.fromisoformat(each["since"]) for each in found["limited"]), found["time"]
    assert (datetime.fromisoformat(at) - next(since)).total_seconds() == 3


@pytest.mark.usefixtures("server")
def test_in_observe_mode_nothing_is_said_to_be_held(
    port: int, state: PublishedState, capsys: pytest.CaptureFixture[str]
) -> None:
    assert state.report is not None
    state.report = replace(state.report, mode=Mode.OBSERVE)
    assert main(["status", "--url", f"http://127.0.0.1:{port}"]) == 0
    out = capsys.readouterr().out
    assert "1 of 1 best-effort workload would be limited" in out
    assert "job: 0.50cpu, would be limited since " in out
    assert "Knobs that would be held:" in out
    assert "Held" not in out and "pause'" not in out
    assert out.splitlines()[-1] == "'sweetpoint advise' says what enforcing would bring"


@pytest.mark.usefixtures("server")
def test_nothing_in_force_is_one_line(
    port: int, state: PublishedState, capsys: pytest.CaptureFixture[str]
) -> None:
    assert state.report is not None
    state.report = replace(state.report, in_force=InForce())
    assert main(["status", "--url", f"http://127.0.0.1:{port}"]) == 0
    head, *notes = capsys.readouterr().out.splitlines()
    assert head.endswith(": none of 1 best-effort workload limited")
    assert all(each.startswith("! ") for each in notes)


@pytest.mark.usefixtures("server")
def test_without_an_agent_the_journal_says_what_is_still_held(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Although at its address something answers, which is another agent."""
    state_dir = config.parent / "state"
    Journal(state_dir / JOURNAL).put(QUOTA)
    assert main(["status", "--config", str(config)]) == 0
    head, note, title, knob, then = capsys.readouterr().out.splitlines()
    assert head.endswith(": 1 knob held")
    assert note == f"! no agent runs with {state_dir}: this is what its journal says"
    assert title == "Held knobs:"
    assert knob.startswith("  cpu.quota of /batch/job: unlimited -> 0.50cpu, this value since ")
    assert then.startswith(f"'sweetpoint release --state-dir {state_dir}' restores them now")
    assert main(["status", "--json", "--config", str(config)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["source"], found["best_effort"], len(found["knobs"])) == ("journal", None, 1)


def test_without_agent_and_journal_nothing_is_held_and_a_pause_is_named(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state_dir = config.parent / "state"
    now_s = datetime.now().timestamp()
    change_pauses(state_dir, [PauseEntry(EVERYTHING, "", now_s + 600)], (), now_s)
    assert main(["status", "--config", str(config)]) == 0
    head, _, pause = capsys.readouterr().out.splitlines()
    assert head.endswith(": no knob held")
    assert pause == "! an agent that starts finds a pause: everything"


def test_an_agent_without_pages_is_told_from_none(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state_dir = config.parent / "state"
    hostile = QUOTA._replace(target=JOB._replace(path="/batch/\x1b[31m"))
    Journal(state_dir / JOURNAL).put(hostile)
    lock = Lock(state_dir)
    try:
        assert main(["status", "--config", str(config)]) == 0
    finally:
        lock.close()
    out = capsys.readouterr().out
    assert "the agent was not asked, so this is what its journal says" in out
    assert "release" not in out
    assert r"/batch/\x1b[31m" in out


@pytest.mark.parametrize("text", [None, "mode: wrong\n"])
def test_a_configuration_that_is_wrong_now_hides_nothing(
    text: str | None,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """While the agent goes on with the one that it has; the directory may be a relative one."""
    monkeypatch.chdir(config.parent)
    if text is None:
        config.unlink()
    else:
        config.write_text(text)
    agents = [RunningAgent(config.parent / "state", config)]
    monkeypatch.setattr(running_agents, "running_agents", lambda: agents)
    Journal(Path("state", JOURNAL)).put(QUOTA)
    lock = Lock(Path("state"))
    try:
        assert main(["status", "--state-dir", "state"]) == 0
    finally:
        lock.close()
    out = capsys.readouterr().out
    assert "1 knob held" in out and str(config) in out


def test_a_reader_changes_no_journal_and_tells_what_it_cannot_evaluate(tmp_path: Path) -> None:
    Journal(tmp_path).put(QUOTA)
    for name, content in {
        "half.tmp": b"{",
        "cpu.quota.cgroup.cpu.8.00000000.json": b"damaged",
        "cpu.quota.cgroup.cpu.9.00000000.bad": b"damaged before",
    }.items():
        (tmp_path / name).write_bytes(content)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    found = view_journal(tmp_path)
    assert [each for each, _ in found.records] == [QUOTA]
    assert {each.suffix for each in found.unread} == {".json", ".bad"}
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_the_agent_of_a_node_of_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    (tmp_path / "page").write_text(f"{json.dumps(page(published()))}\n")
    assert main(["status", "--node", "n1"]) == 0
    assert "job: 0.50cpu, limited since " in capsys.readouterr().out
    assert main(["status", "--node", "n2"]) == 1
    assert "no agent runs on node 'n2'" in capsys.readouterr().err


@needs_root("to give a directory away")
def test_a_journal_of_another_user_is_not_believed(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = config.parent / "state" / JOURNAL
    journal.mkdir(mode=0o700)
    os.chown(journal, 1234, 1234)
    assert main(["status", "--config", str(config)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(journal) in line
