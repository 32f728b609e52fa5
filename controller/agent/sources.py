# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The problems of all sources that control rests on, in one place; see ``host/sources.py``.

/readyz, /statusz, the metrics, the log and an Event speak from it.
"""

from collections.abc import Callable, Iterable
import logging
import time

from controller.core.units import NS_PER_SEC
from controller.host.sources import Source, SourceProblem, SourceState

__all__ = ("Sources",)

_log = logging.getLogger(__name__)

# A problem that ends sooner is not told: at each start the list of pods takes seconds.
_TELL_NS = 30 * NS_PER_SEC


class Sources:
    """Keeps one problem per source, with its begin, and tells each once; for the control thread.

    ``problems`` has at most one entry per source, in the order of ``Source``.

    :param warn: called once per episode of a source, in addition to the log.
    :param wall_clock: seconds since the epoch.
    """

    def __init__(
        self, warn: Callable[[Source, str], None], wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._warn = warn
        self._wall_clock = wall_clock
        self._begun_ns: dict[Source, int] = {}
        self._told: set[Source] = set()
        self.problems: tuple[SourceProblem, ...] = ()

    def update(self, found: Iterable[SourceProblem], now_ns: int) -> None:
        """Take the problems of this tick; *now_ns* is CLOCK_MONOTONIC."""
        before = {each.source: each for each in self.problems}
        by_source: dict[Source, list[SourceProblem]] = {}
        for each in found:
            by_source.setdefault(each.source, []).append(each)
        problems = []
        for source in Source:
            if source not in by_source:
                self._end(source)
                continue
            self._begun_ns.setdefault(source, now_ns)
            since_s = before[source].since_s if source in before else self._wall_clock()
            problem = _joined(by_source[source])._replace(since_s=since_s)
            problems.append(problem)
            self._tell(problem, now_ns)
        self.problems = tuple(problems)

    def _tell(self, problem: SourceProblem, now_ns: int) -> None:
        source = problem.source
        if source in self._told or now_ns - self._begun_ns[source] < _TELL_NS:
            return
        self._told.add(source)
        text = f"{source}: {problem.message}"
        _log.warning("degraded: %s", text)
        self._warn(source, text)

    def _end(self, source: Source) -> None:
        self._begun_ns.pop(source, None)
        if source in self._told:
            self._told.remove(source)
            _log.info("%s: well again", source)


def _joined(problems: list[SourceProblem]) -> SourceProblem:
    unseen = any(each.state is SourceState.UNSEEN for each in problems)
    return SourceProblem(
        problems[0].source,
        SourceState.UNSEEN if unseen else SourceState.DEGRADED,
        "; ".join(each.message for each in problems),
    )
