# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The sources that control rests on, and what is wrong with one of them.

A problem is made where the fact is known: ``kube/source_problems.py`` for the cluster,
``agent/source_problems.py`` for the rest. ``agent/sources.py`` collects them.
"""

from enum import StrEnum
from typing import NamedTuple

__all__ = ("Source", "SourceProblem", "SourceState")


class Source(StrEnum):
    """What control rests on.

    ``PODS``: the API server's list of this node's pods. ``PROBES``: what measures. ``PROFILES``:
    the configuration and the sweet points in it. ``PERMISSIONS``: what the API server lets this
    agent do. ``CLOCK``: ticks in time, and a wall clock that runs steadily.
    """

    PODS = "pods"
    PROBES = "probes"
    PROFILES = "profiles"
    PERMISSIONS = "permissions"
    CLOCK = "clock"


class SourceState(StrEnum):
    """``UNSEEN``: the source never worked in this run, so the agent is not Ready.

    ``DEGRADED``: it worked, or control goes on without it.
    """

    UNSEEN = "unseen"
    DEGRADED = "degraded"


class SourceProblem(NamedTuple):
    """A source that is not well.

    ``message`` says what is wrong and what to do, and contains no number that changes all the
    time. ``since_s`` is the begin in seconds since the epoch; the collector sets it.
    """

    source: Source
    state: SourceState
    message: str
    since_s: float = 0.0
