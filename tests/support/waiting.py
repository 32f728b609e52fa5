# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition. Its deadline is no part of a verdict: only a hang reaches it."""

from collections.abc import Callable
import os
import time
from typing import TypeVar

__all__ = ("DEADLINE_S", "WORK_S", "eventually")

# The test kernel has a tenth of the speed of this machine, and far less beside other work.
DEADLINE_S = 1800.0 if "SWEETPOINT_VM_REPORTS" in os.environ else 120.0
# The same for work that takes this machine a minute: an installation, a demonstration.
WORK_S = 10 * DEADLINE_S
# So the test kernel is not busy with asking.
_PAUSE_S = DEADLINE_S / 6000
_Found = TypeVar("_Found")


def eventually(what: str, check: Callable[[], _Found | None]) -> _Found:
    """Call *check* until its result is true, and return that; *what* names it if it never is."""
    stop_s = time.monotonic() + DEADLINE_S
    while True:
        result = check()
        if result:
            return result
        assert time.monotonic() < stop_s, f"not in {DEADLINE_S:g} s: {what}"
        time.sleep(_PAUSE_S)
