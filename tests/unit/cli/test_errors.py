# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Usual mistakes at the command line are answered in one line without numbers of the kernel."""

import errno
import os
from pathlib import Path

import pytest

from controller.cli.main import main
from controller.demo.programs import free_port

NONE = "there is no such file or directory"
DIRECTORY = "this is a directory, not a file"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["check", "--config", "none"], 2, f"none: cannot read: {NONE}"),
        (["check", "--config", "."], 2, DIRECTORY),
        (["learn", "web", "--config", "none"], 2, NONE),
        (["top", "--config", "none"], 2, NONE),
        (["top", "--url", "http://127.0.0.1:{port}"], 1, "nothing listens at this address"),
        (["top", "--url", "ftp://host"], 1, "must begin with http"),
        (["replay", "none"], 1, f"none: {NONE}"),
        (["replay", "."], 1, "has no snapshots"),
        (["simulate", "--recording", "none"], 1, NONE),
        (["simulate", "--plot", "none/x.svg"], 2, "none is no directory"),
        (["simulate", "--scenario", "none"], 2, "see --list"),
        (["import-koordinator", "none"], 2, NONE),
        (["import-koordinator", "."], 2, DIRECTORY),
        (["explain", "web", "--data-dir", "none"], 1, "none has no history yet; --config names"),
        (["explain", "--data-dir", "."], 1, "has no name of this time; try --since"),
        (["explain", "web", "--since", "soon"], 2, "not a time such as 2h"),
        (["advise", "--config", "none"], 2, "can be named with --data-dir instead"),
        (["pause", "--for", "soon"], 2, "neither a duration such as 30m"),
        (["release", "--config", "none"], 2, "can be named with --state-dir instead"),
        (["schema", "confg"], 2, "choose from 'config', 'profile'"),
        (["demo", "--seconds", "1"], 2, "is not a number of 2 or more"),
    ],
)
def test_a_mistake_is_one_line_with_what_to_do(
    words: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        found: object = main([each.format(port=free_port()) for each in words])
    except SystemExit as end:
        found = end.code
    shown = capsys.readouterr()
    assert found == code
    assert message in shown.err
    assert shown.err.startswith("sweetpoint: ")
    assert shown.err.count("\n") == 1
    assert "Errno" not in shown.err
    assert shown.out == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [["run"], ["learn", "a"], ["advise"], ["explain", "a"]])
def test_what_needs_root_says_so_at_once(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config, data = tmp_path / "config.yaml", tmp_path / "data"
    config.write_text(
        f"data_dir: {data}\nworkloads: [{{name: a, cgroup: /a, class: latency-sensitive}}]\n"
    )
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(data / "history"))

    monkeypatch.setattr("controller.agent.history.reader.HistoryReader.__init__", denied)
    assert main([*command, "--config", str(config)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "root" in line
    assert line.count(str(data)) == ("history" in line)
