# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The scripts for shells complete what the parser has."""

import os
from pathlib import Path
import subprocess

import pytest

from controller.cli.main import COMMANDS, main
from tests.support.needs import needs_program

# Calls the function that the script defines, as bash does, and prints the answers.
COMPLETE = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_shtab_sweetpoint sweetpoint "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def script(shell: str, home: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", shell]) == 0
    path = home / f"completion.{shell}"
    path.write_text(capsys.readouterr().out)
    return path


@pytest.mark.parametrize(
    ("words", "answers"),
    [
        ([""], {*COMMANDS}),
        (["pa"], {"pause"}),
        (["pause", "--st"], {"--state-dir"}),
        (["completion", "f"], {"fish"}),
        (["check", "--config", "conf"], {"config.yaml", "configs"}),
        (["pause", "--state-dir", "conf"], {"configs"}),
        (["explain", "--data-dir", "conf"], {"configs"}),
    ],
)
def test_bash_completes_commands_options_and_files(
    words: list[str], answers: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script("bash", tmp_path, capsys)
    (tmp_path / "config.yaml").touch()
    (tmp_path / "configs").mkdir()
    done = subprocess.run(
        ["bash", "-c", COMPLETE, "bash", path, "sweetpoint", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) == answers


@needs_program("fish")
def test_fish_completes_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = script("fish", tmp_path, capsys)
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source {path}; complete -C 'sweetpoint pause --st'"],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("--state-dir\t")


@needs_program("zsh")
def test_zsh_reads_its_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subprocess.run(["zsh", "-n", script("zsh", tmp_path, capsys)], check=True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_script_has_each_command(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = script(shell, tmp_path, capsys).read_text()
    for name in COMMANDS:
        assert name in text
