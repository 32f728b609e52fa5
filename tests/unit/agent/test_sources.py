# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Problems of sources in one place: their begin, and that each is told once."""

import logging

import pytest

from controller.agent.sources import Sources
from controller.core.units import NS_PER_SEC
from controller.host.sources import Source, SourceProblem, SourceState

OLD = SourceProblem(Source.PODS, SourceState.DEGRADED, "the list is old")
NO_NODE = SourceProblem(Source.PODS, SourceState.UNSEEN, "there is no Node n")
LATE = SourceProblem(Source.CLOCK, SourceState.DEGRADED, "most ticks come late")


class Site:
    """The collector, its clocks, and what it warned of."""

    def __init__(self) -> None:
        self.now_s = 100
        self.warned: list[tuple[Source, str]] = []
        self.sources = Sources(self._warn, lambda: 1e9 + self.now_s)

    def _warn(self, source: Source, text: str) -> None:
        self.warned.append((source, text))

    def see(self, *problems: SourceProblem, after_s: int = 1) -> tuple[SourceProblem, ...]:
        self.now_s += after_s
        self.sources.update(problems, self.now_s * NS_PER_SEC)
        return self.sources.problems


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_source_has_one_problem_with_its_begin(site: Site) -> None:
    assert site.see() == ()
    assert site.see(LATE, OLD) == (
        OLD._replace(since_s=1e9 + 102),
        LATE._replace(since_s=1e9 + 102),
    )
    (both,) = site.see(OLD, NO_NODE)
    text = "the list is old; there is no Node n"
    assert both == SourceProblem(Source.PODS, SourceState.UNSEEN, text, 1e9 + 102)
    assert site.see(LATE) == (LATE._replace(since_s=1e9 + 104),)


def test_an_episode_is_told_once(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(100):
        site.see(OLD)
    site.see(NO_NODE)
    assert site.warned == [(Source.PODS, "pods: the list is old")]
    site.see()
    for _ in range(100):
        site.see(OLD)
    assert site.warned == [(Source.PODS, "pods: the list is old")] * 2
    assert caplog.messages == [
        "degraded: pods: the list is old",
        "pods: well again",
        "degraded: pods: the list is old",
    ]


def test_what_ends_soon_is_not_told(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(5):
        assert site.see(NO_NODE)
        site.see(NO_NODE, after_s=28)
        assert site.see() == ()
    assert not site.warned
    assert not caplog.messages
