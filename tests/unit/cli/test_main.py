# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

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
    assert modules == {"controller.cli.main", "controller.cli.common", "controller.cli.run"}


def test_an_unknown_sub_command_is_answered_with_all_that_exist() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "controller.cli.main", "--verbose", "rum"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "'import-koordinator'" in done.stderr


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
