# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Episodes of suffering: how bad a service was on a channel, and whether that got better.

The stories of a service and of the workloads that were limited for it take both from here, so that
they give the same verdict.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from controller.agent.history.incidents import Effect, suffers
from controller.agent.history.records import Moment
from controller.core.decision import Cause, LoopReport, Part, PartKind
from controller.core.eviction.causes import depth
from controller.core.model import Channel
from controller.core.units import NS_PER_SEC
from controller.telemetry.suffering import is_worse

__all__ = ("PAUSE_NS", "Episode", "Episodes", "PartSums", "loops_of")

# A service that is above its sweet point again within this time has one episode.
PAUSE_NS = 30 * NS_PER_SEC
# The time after which the effect of an action is looked at, as for an eviction.
_EFFECT_NS = 30 * NS_PER_SEC
_PARTS = 6


@dataclass(slots=True)
class Episode:
    """A time in which a service is above its sweet point on a channel, with short pauses.

    ``loop`` has the worst raw value so far. ``last_ns`` is when it suffered last. ``be_share`` is
    best-effort's part in what hurts it, the last one that is known.
    """

    began_ns: int
    last_ns: int
    loop: LoopReport
    be_share: float | None = None
    effect: Effect = field(default_factory=Effect)


class PartSums:
    """The average parts of what hurt a service over a time."""

    def __init__(self) -> None:
        self._sums: dict[tuple[PartKind, str], float] = {}
        self._time_ns = 0

    def add(self, parts: Iterable[Part], time_ns: int) -> None:
        """Take *parts*, which held for *time_ns*."""
        self._time_ns += time_ns
        for each in parts:
            key = each.kind, each.name
            self._sums[key] = self._sums.get(key, 0.0) + each.share * time_ns

    def largest(self) -> tuple[Part, ...]:
        """Return the largest parts, the largest first; none without a time."""
        if not self._time_ns:
            return ()
        found = [Part(*key, round(sum_ns / self._time_ns, 4)) for key, sum_ns in self._sums.items()]
        return tuple(sorted(found, key=lambda each: -each.share)[:_PARTS])


class Episodes:
    """The episodes that last, by service and channel."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, Channel], Episode] = {}

    def of(self, service: str | None, channel: Channel | None) -> Episode | None:
        """Return the episode of *service* on *channel* that lasts; ``None``: there is none."""
        if service is None or channel is None:
            return None
        return self._open.get((service, channel))

    def take(self, wall_ns: int, moment: Moment) -> None:
        """Take a moment."""
        loops = loops_of(moment)
        for key, episode in list(self._open.items()):
            if not 0 <= wall_ns - episode.last_ns <= PAUSE_NS:
                del self._open[key]
        for key, loop in loops.items():
            if suffers(loop):
                episode = self._open.setdefault(key, Episode(wall_ns, wall_ns, loop))
                episode.last_ns = wall_ns
        shares = {(each.service, each.channel): _share(each) for each in moment.causes}
        for key, episode in self._open.items():
            share = shares.get(key)
            episode.be_share = episode.be_share if share is None else share
            if key in loops:
                _measure(episode, wall_ns, loops[key])
        for loop in moment.worst:
            lasting = self._open.get((loop.service, loop.channel))
            if lasting is not None and is_worse(loop, lasting.loop):
                lasting.loop = loop

    def clear(self) -> None:
        """End all episodes: the agent ended."""
        self._open.clear()


def _share(cause: Cause) -> float | None:
    """Return the part of best-effort work, with that which is paused and therefore not limited."""
    if cause.be_share is None:
        return None
    paused = (each.share for each in cause.parts if each.kind is PartKind.PAUSED)
    return min(1.0, cause.be_share + sum(paused))


def loops_of(moment: Moment) -> dict[tuple[str, Channel], LoopReport]:
    """Return the loop of each service and channel with the largest deviation."""
    loops: dict[tuple[str, Channel], LoopReport] = {}
    for loop in moment.loops:
        worst = loops.get((loop.service, loop.channel))
        if worst is None or (depth(loop) or 0.0) > (depth(worst) or 0.0):
            loops[loop.service, loop.channel] = loop
    return loops


def _measure(episode: Episode, wall_ns: int, loop: LoopReport) -> None:
    if is_worse(loop, episode.loop):
        episode.loop = loop
    effect, deviation = episode.effect, depth(loop)
    if deviation is None:
        return
    if effect.before is None:
        effect.before = deviation
    effect.last = deviation
    if effect.highest is None or deviation > effect.highest:
        effect.highest, effect.highest_ns = deviation, wall_ns
        effect.after = effect.below_after_ns = None
        effect.be_share = episode.be_share
        return
    if effect.after is None and wall_ns - effect.highest_ns >= _EFFECT_NS:
        effect.after = deviation
    if deviation <= 0 and effect.below_after_ns is None:
        effect.below_after_ns = max(0, wall_ns - episode.began_ns)
