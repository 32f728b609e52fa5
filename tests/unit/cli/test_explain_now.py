# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""``sweetpoint explain`` asks the running agent for what its history does not have yet."""

from collections.abc import Iterator
import json
from pathlib import Path

import pytest

from controller.cli.explain_now import now_of
from controller.cli.main import main
from controller.demo.programs import free_port
from controller.demo.simulated_node import SimulatedNode
from controller.host.state_dir import Lock
from controller.telemetry.http import StatusServer
from tests.support.loops.closed_loop import make_settings
from tests.support.loops.history_loop import RecordedLoop
from tests.unit.cli.published import page, published

CONFIG = """\
http: 127.0.0.1:{port}
state_dir: {home}/state
data_dir: {home}
workloads: [{{name: job, cgroup: /batch/job, class: best-effort}}]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The configuration of an agent whose history has the job before its limit, and no service."""
    node = SimulatedNode(3, wants=(0.0,))
    node.best_effort[0] = node.best_effort[0]._replace(name="job", path="/batch/job")
    loop = RecordedLoop(node, make_settings(), tmp_path)
    loop.run(10)
    loop.stop()
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(port=free_port(), home=tmp_path))
    return path


@pytest.fixture
def agent(config: Path) -> Iterator[None]:
    """An agent that runs with *config* and limits the job for the service web."""
    port = int(config.read_text().partition("127.0.0.1:")[2].partition("\n")[0])
    server = StatusServer(published(), ("127.0.0.1", port), healthy_ns=10**9)
    lock = Lock(config.parent / "state")
    yield
    lock.close()
    server.close()


def explain(config: Path, *words: str) -> list[str]:
    return ["explain", *words, "--since", "2020-01-01T00:00Z", "--config", str(config)]


@pytest.mark.usefixtures("agent")
def test_what_is_not_written_yet_is_asked_for(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(explain(config, "job")) == 0
    out = capsys.readouterr().out.splitlines()
    assert "The history has no incident of it yet." in out
    now, why = out[-2:]
    assert now.startswith("now: job: 0.50cpu, limited since ")
    assert now.endswith(" because of web on cpu")
    assert why == "    why       web runq_p99 3ms > 2ms: demand 0.20"
    assert main(explain(config, "job", "--json")) == 0
    (limited,) = json.loads(capsys.readouterr().out)["now"]["limited"]
    assert (limited["cpus"], limited["service"]) == (0.5, "web")


@pytest.mark.usefixtures("agent")
def test_a_name_that_only_the_agent_knows_yet(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(explain(config, "web")) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "sweetpoint: the history has no 'web' yet: it is written within a minute"
    )
    assert main(explain(config, "wxb")) == 1
    assert "yet" not in capsys.readouterr().err


@pytest.mark.usefixtures("agent")
def test_what_has_ended_is_not_there_any_more(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(explain(config, "web-0")) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "now: the agent has no workload of this name"


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("option", ["--at", "--data-dir"])
def test_the_agent_is_not_asked_about_another_time_or_a_copy(
    option: str, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = "2020-01-01T00:00:05Z" if option == "--at" else str(config.parent)
    assert main(explain(config, "job", option, value)) == 0
    assert "now:" not in capsys.readouterr().out


def test_without_an_agent_it_says_until_when_it_knows(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(explain(config, "job")) == 0
    out = capsys.readouterr().out
    assert "The history is known up to 2020-01-01 " in out
    assert "It was not touched" in out
    assert "now:" not in out
    assert main(explain(config, "job", "--json")) == 0
    assert json.loads(capsys.readouterr().out)["now"] is None


def test_a_service_has_its_indicators_and_a_workload_without_limit_is_told() -> None:
    status = page(published())
    (web,) = now_of(status, "web").lines()
    assert web == "now: runq_p99 3ms, its sweet point is 2ms (1.5 times)"
    slow = {"service": "web", "because": "own-cpu-limit", "name": "", "evidence": "it was\x1b"}
    status["plan"]["slow"] = [slow, {**slow, "service": "shop"}]
    _, verdict = now_of(status, "web").lines()
    assert verdict == r"now: slow (own-cpu-limit): it was\x1b"
    status["in_force"] = {}
    assert [*now_of(status, "job").lines()] == ["now: not limited"]
