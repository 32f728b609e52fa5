# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
import json
import re
import shlex
import subprocess
import sys

import pytest

from controller.cli.main import COMMANDS, main, parser

SCRIPT = """
import sys
from controller.cli.main import main
try:
    main(["run", "--help"])
except SystemExit:
    print(*(name for name in sys.modules if name.startswith("controller.")))
"""


def test_run_imports_no_other_sub_command() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    modules = {name for name in done.stdout.split() if name.startswith("controller.cli.")}
    assert {name.removeprefix("controller.cli.") for name in modules} == {
        "main",
        "common",
        "log_format",
        "run",
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["chekc"], "there is no command 'chekc'; did you mean check?"),
        (["--verbose", "rum"], "there is no command 'rum'; did you mean run, resume?"),
        (["frobnicate"], f"there is no command 'frobnicate'; known: {', '.join(COMMANDS)}"),
        (["\x1b[2J"], r"there is no command '\x1b[2J'; known: "),
        (["pause", "--workloda", "x"], "unknown argument '--workloda'; did you mean --workload?"),
        (["pause", "encode"], "unknown argument 'encode'; see 'sweetpoint pause --help'"),
        (["schema", "confg"], "see 'sweetpoint schema --help'"),
        ([], "required: COMMAND; see 'sweetpoint --help'"),
    ],
)
def test_a_mistyped_command_line_is_one_line_with_what_to_do(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(words)
    except SystemExit as end:
        code = end.code
    shown = capsys.readouterr().err
    assert code == 2
    assert message in shown
    assert shown.startswith("sweetpoint: ")
    assert shown.count("\n") == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_each_help_has_a_sentence_and_an_example(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    usage, sentence, *_, example = capsys.readouterr().out.rstrip().split("\n\n")
    assert usage.startswith(f"usage: sweetpoint {name} ")
    assert sentence[0].isupper()
    assert sentence.endswith(".")
    assert 4 <= len(sentence.split(". ")[0].split()) <= 25
    title, line = example.splitlines()
    assert title == "example:"
    program, *words = shlex.split(line)
    assert program == "sweetpoint"
    assert parser([name]).parse_args(words).command == name


LOGGING = r"""
import logging
from controller.cli.main import main
main(["pause", "--for", "0s"])
logging.warning("%s is gone\nsecond line", "/batch/\x1b[2J\udcff")
"""


def test_odd_names_are_logged_as_text() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOGGING], capture_output=True, text=True, check=True
    )
    *_, first, second = done.stderr.splitlines()
    assert first.endswith(r" WARNING /batch/\x1b[2J\udcff is gone")
    assert second == "second line"


JSON = r"""
import logging
from controller.cli.main import main
main(["--log-format", "json", "pause", "--for", "0s"])
logging.getLogger("x").warning("%s is gone\nsecond line", "/batch/\x1b[2J\udcff")
try:
    1 / 0
except ZeroDivisionError:
    logging.exception("a defect")
"""


def test_a_log_in_json_has_an_object_in_each_line() -> None:
    done = subprocess.run([sys.executable, "-c", JSON], capture_output=True, check=True)
    *_, first, second = (json.loads(line) for line in done.stderr.splitlines()[1:])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {
        "level": "WARNING",
        "logger": "x",
        "message": "/batch/\x1b[2J\udcff is gone\nsecond line",
    }
    assert done.stderr.isascii()
    assert b"\x1b" not in done.stderr
    assert second["message"] == "a defect"
    assert second["exception"].endswith("ZeroDivisionError: division by zero")
