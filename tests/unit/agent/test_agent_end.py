# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Why an agent ended: its code, its guardian, and the memory counters before and after."""

import signal

import pytest

from controller.agent.agent_end import RESTART_REASONS, AgentEnd, explain_end
from controller.host.oom import OomCounters

KILLED = -signal.SIGKILL
FREE, LIMITED = OomCounters(0, 5, None), OomCounters(0, 5, 64 << 20)


@pytest.mark.parametrize(
    ("end", "before", "after", "reason", "words"),
    [
        ((3,), FREE, FREE, "exit", "ended with 3"),
        ((-11,), FREE, FREE, "signal", "ended with -11 (Segmentation fault)"),
        ((KILLED, False, True), FREE, FREE, "silent", "killed by its guardian"),
        ((KILLED,), None, None, "signal", "ended with -9 (Killed)"),
        ((KILLED,), LIMITED, LIMITED, "signal", "sent by another program"),
        # Pages of files were dropped at the limit, and somebody killed the agent.
        ((KILLED,), LIMITED, LIMITED._replace(at_limit=9), "signal", "sent by another program"),
        (
            (KILLED,),
            LIMITED,
            LIMITED._replace(kills=1, at_limit=9),
            "memory-limit",
            "was ended by the memory limit of 64 MiB (raise resources.limits.memory",
        ),
        ((KILLED,), LIMITED, LIMITED._replace(kills=1), "out-of-memory", "the host or a parent"),
        ((KILLED,), FREE, FREE._replace(kills=2), "out-of-memory", "the host or a parent"),
    ],
)
def test_why_an_agent_ended(
    end: tuple[int, ...],
    before: OomCounters | None,
    after: OomCounters | None,
    reason: str,
    words: str,
) -> None:
    code, stopped, killed = (*end, False, False)[:3]
    found = explain_end(AgentEnd(code, bool(stopped), bool(killed)), before, after)
    assert found[0] == reason
    assert words in found[1]
    assert reason in RESTART_REASONS
