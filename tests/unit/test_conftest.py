# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The states of SWEETPOINT_KERNEL_TESTS, with and without the requirements of kernel tests."""

import pytest

CONFTEST = """
import tests.conftest as shared
from tests.conftest import pytest_runtest_setup
shared._REASONS = {"kernel": lambda: REASON}

def pytest_configure(config):
    config.addinivalue_line("markers", "kernel: for this test")
"""
TEST = """
import pytest

@pytest.mark.kernel
def test_kernel(): pass

def test_other(): pass
"""


@pytest.mark.parametrize(
    ("switch", "reason", "outcomes"),
    [
        (None, None, {"passed": 2}),
        ("0", None, {"passed": 1, "skipped": 1}),
        ("1", None, {"passed": 2}),
        (None, "no BTF", {"passed": 1, "skipped": 1}),
        ("0", "no BTF", {"passed": 1, "skipped": 1}),
        ("1", "no BTF", {"passed": 1, "errors": 1}),
        ("yes", None, {"passed": 1, "errors": 1}),
    ],
)
def test_switch(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    switch: str | None,
    reason: str | None,
    outcomes: dict[str, int],
) -> None:
    monkeypatch.delenv("SWEETPOINT_KERNEL_TESTS", raising=False)
    if switch is not None:
        monkeypatch.setenv("SWEETPOINT_KERNEL_TESTS", switch)
    # CONFTEST changes the module of the outer run: monkeypatch restores its table.
    monkeypatch.setattr("tests.conftest._REASONS", {})
    pytester.makeconftest(CONFTEST.replace("REASON}", f"{reason!r}}}"))
    pytester.makepyfile(TEST)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    assert result.parseoutcomes() == outcomes
    if switch == "1" and reason:
        result.stdout.fnmatch_lines(
            ["*SWEETPOINT_KERNEL_TESTS=1, but this machine cannot: no BTF*"]
        )
