# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""One option names the agent for all commands; without it the one that runs is taken."""

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.cli import common
from controller.cli.common import WrongAgentError, find_config, find_data_dir, find_state_dir
from controller.cli.main import COMMANDS, command, main
from controller.config.load import json_schemas
from controller.config.state_dir import DEFAULT_DATA_DIR, DEFAULT_STATE_DIR
from controller.host import running_agents
from controller.host.pause_file import pause_file
from controller.host.running_agents import RunningAgent

# Those that have to do with an agent of this host, with the other arguments that they need.
OF_AN_AGENT = {
    "status": [],
    "top": ["--once"],
    "pause": [],
    "resume": [],
    "release": [],
    "check": [],
    "explain": ["web"],
    "advise": [],
    "learn": ["web"],
    "trial": [],
}
OTHERS = {"run", "doctor", "demo", "retire", "init", "schema", "replay", "simulate", "rollout"}
HOG = "workloads: [{name: batch, cgroup: /batch/*, class: best-effort}]"

Run = Callable[..., list[RunningAgent]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Has agents run on this host."""

    def start(*agents: RunningAgent) -> list[RunningAgent]:
        monkeypatch.setattr(running_agents, "running_agents", lambda: [*agents])
        return [*agents]

    return start


def parse(name: str, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command(name).add_arguments(parser)
    return parser.parse_args([*OF_AN_AGENT[name], *words])


def test_no_command_is_left_out() -> None:
    assert {*OF_AN_AGENT, *OTHERS, "import-koordinator", "completion"} == {*COMMANDS}


@pytest.mark.parametrize("name", OF_AN_AGENT)
def test_all_commands_have_the_same_option(name: str) -> None:
    assert parse(name, "--config", "/a.yaml").config == Path("/a.yaml")
    assert parse(name).config is None


@pytest.mark.parametrize("name", OF_AN_AGENT)
def test_several_agents_are_listed(
    name: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(RunningAgent(tmp_path / "1", Path("/a.yaml")), RunningAgent(tmp_path / "2", None))
    assert main([name, *OF_AN_AGENT[name]]) == 2
    assert capsys.readouterr().err == (
        "sweetpoint: 2 agents run on this host; say which one: --config /a.yaml or "
        "--config /etc/sweetpoint/config.yaml\n"
    )
    assert not list(tmp_path.iterdir())


def test_the_agent_that_runs_is_found(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"data_dir: {tmp_path}/data\nstate_dir: /written/later\n")
    run(RunningAgent(tmp_path / "state", config))
    assert find_config(parse("top")) == config
    # The directory that it has, whatever is in the file now.
    assert find_state_dir(parse("pause")) == tmp_path / "state"
    assert find_data_dir(parse("explain")) == tmp_path / "data"
    # What is named goes first.
    config.with_name("other").write_text("state_dir: /other/state\ndata_dir: /other/data\n")
    named = "--config", str(config.with_name("other"))
    assert find_config(parse("top", *named)) == config.with_name("other")
    assert find_state_dir(parse("pause", *named)) == Path("/other/state")
    assert find_data_dir(parse("explain", *named)) == Path("/other/data")


def test_a_pause_reaches_the_agent_that_runs(run: Run, tmp_path: Path) -> None:
    (config := tmp_path / "config.yaml").write_text(HOG)
    run(RunningAgent(tmp_path / "state", config))
    assert main(["pause"]) == 0
    assert pause_file(tmp_path / "state").exists()


def test_without_an_agent_it_is_the_usual_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "_CONFIG", usual := tmp_path / "config.yaml")
    with pytest.raises(WrongAgentError, match="no agent runs on this host, and there is no"):
        find_config(parse("check"))
    assert find_state_dir(parse("pause")) == Path(DEFAULT_STATE_DIR)
    assert find_data_dir(parse("explain")) == Path(DEFAULT_DATA_DIR)
    usual.write_text("state_dir: /usual/state\ndata_dir: /usual/data\n")
    assert find_config(parse("check")) == usual
    assert find_state_dir(parse("pause")) == Path("/usual/state")
    assert find_data_dir(parse("explain")) == Path("/usual/data")


@pytest.mark.parametrize("name", ["explain", "advise"])
def test_a_directory_can_be_named_where_the_file_cannot_be_used(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (config := tmp_path / "config.yaml").write_text("data_dir: var\n")
    words = [name, *OF_AN_AGENT[name], "--config", str(config)]
    assert main(words) == 2
    assert capsys.readouterr().err.endswith("can be named with --data-dir instead\n")
    assert main([*words, "--data-dir", str(tmp_path / "none")]) == 1
    assert f"{tmp_path}/none has no history yet" in capsys.readouterr().err


def test_the_usual_directories_are_those_of_the_configuration() -> None:
    properties = json_schemas()["config"]["properties"]
    assert properties["state_dir"]["default"] == DEFAULT_STATE_DIR
    assert properties["data_dir"]["default"] == DEFAULT_DATA_DIR
