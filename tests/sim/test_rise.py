# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A ladder whose first knobs do not help: how long a service suffers until the next one moves."""

from dataclasses import replace

from tests.sim.who import observe
from tests.support.loops.closed_loop import LAW

# Otherwise the squeeze begins with the quota, which helps.
FAST = replace(LAW, rungs_by_work=False)
SLOW = replace(FAST, fast_rise=False)


def test_knobs_that_do_not_help_are_passed_within_seconds() -> None:
    """The harm is of the core's units, and cache ways and memory bandwidth come first.

    Most of the minute lies before the culprit is held. Afterwards the law is the same.
    """
    fast, slow = (observe("smt", 1, 60, law, resctrl=True) for law in (FAST, SLOW))
    assert slow.violating > 0.2
    assert fast.violating < 0.5 * slow.violating
