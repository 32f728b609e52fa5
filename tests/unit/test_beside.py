# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that run in a pytest of their own: each is reported as the child reported it."""

from pathlib import Path

import pytest

CONFTEST = """
import os, sys
from pathlib import Path
from tests.support.beside import Beside, Child, Reporter

def pytest_configure(config):
    if "IN_CHILD" in os.environ:
        config.pluginmanager.register(Reporter(config, Path(os.environ["IN_CHILD"])))

def pytest_collection_finish(session):
    if "IN_CHILD" not in os.environ:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        child = Child("child", lambda at: [*command, f"@{at}/ids"],
                      lambda at: {"IN_CHILD": str(at)},
                      limit_s=120.0, cleans_up=True)
        beside = Beside(child, [each.nodeid for each in session.items if "beside" in each.name])
        session.config.pluginmanager.register(beside)
        session.config.add_cleanup(beside.end)
"""
BESIDE = """
import os, pytest

def test_beside_passes(): assert "IN_CHILD" in os.environ

def test_beside_fails(): assert 1 == 2

@pytest.mark.skip(reason="not here")
def test_beside_is_skipped(): pass

def test_beside_never_ends(): os._exit(3)

def test_here(): assert "IN_CHILD" not in os.environ
"""
HANGS = """
import os, time
from pathlib import Path

def test_beside_hangs():
    try:
        Path("begun").touch()
        time.sleep(600)
    finally:
        Path("cleaned").touch()

def test_an_interrupt():
    while not Path("begun").exists():
        time.sleep(0.05)
    raise KeyboardInterrupt
"""


def run(pytester: pytest.Pytester, *names: str, tests: str) -> pytest.RunResult:
    pytester.makeconftest(CONFTEST)
    path = pytester.makepyfile(tests)
    # A process of its own, because one test interrupts it.
    pytester.makeini(f"[pytest]\npythonpath = {Path(__file__).parents[2]}\n")
    return pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", *(f"{path.name}::{name}" for name in names)
    )


def test_each_verdict_of_the_child_is_repeated(pytester: pytest.Pytester) -> None:
    names = ("passes", "fails", "is_skipped")
    result = run(pytester, "test_here", *(f"test_beside_{name}" for name in names), tests=BESIDE)
    result.assert_outcomes(passed=2, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*assert 1 == 2*"])


def test_a_test_without_a_report_has_failed(pytester: pytest.Pytester) -> None:
    result = run(pytester, "test_beside_passes", "test_beside_never_ends", tests=BESIDE)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["the child ended without a result of this test; *"])
    result.stdout.fnmatch_lines(["(the child ended with 3)"])


def test_an_interrupt_lets_the_child_clean_up(pytester: pytest.Pytester) -> None:
    result = run(pytester, "test_an_interrupt", "test_beside_hangs", tests=HANGS)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert Path("cleaned").exists()
