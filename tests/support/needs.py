# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Marks of tests that need more than Python: without it they are skipped, and in CI they fail.

CI sets ``SWEETPOINT_KERNEL_TESTS=1``, so that no test is skipped there for ever unnoticed.
"""

import os
import shutil

import pytest

__all__ = ("all_is_required", "needs_program", "needs_root", "skip_unless")


def all_is_required() -> bool:
    """Return whether a test fails if what it needs is missing."""
    return os.environ.get("SWEETPOINT_KERNEL_TESTS") == "1"


def skip_unless(present: bool, what: str) -> pytest.MarkDecorator:
    """Return the mark of a test that needs *what*; where all is required, it runs and fails."""
    return pytest.mark.skipif(not (present or all_is_required()), reason=f"needs {what}")


def needs_program(name: str) -> pytest.MarkDecorator:
    """Return the mark of a test that starts the program *name*."""
    return skip_unless(shutil.which(name) is not None, name)


def needs_root(why: str) -> pytest.MarkDecorator:
    """Return the mark of a test that needs root; *why* is a phrase with "to"."""
    return skip_unless(os.geteuid() == 0, f"root {why}")
