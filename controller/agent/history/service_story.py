# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The story of a service: when it suffered, from what, what was tried, and whether that helped."""

from dataclasses import dataclass, field

from controller.agent.history.cookies import Cookies
from controller.agent.history.episodes import PAUSE_NS, Episodes, PartSums, loops_of
from controller.agent.history.incidents import Coverage, Note, NoteKind, Suffering, suffers
from controller.agent.history.records import Moment, Start, Write
from controller.agent.history.story import ORDER, Evictions, Story, held_knob
from controller.core.decision import (
    SLOW,
    UNKNOWN,
    ChannelState,
    Demand,
    IndicatorStatus,
    LoopReport,
)
from controller.core.in_force import BACKSTOPS, CHANNELS
from controller.core.model import Channel

__all__ = ("ServiceStory",)

# A suffering below this deviation is within the dead zone of its loop.
_LEAST = 0.1


@dataclass(slots=True)
class _Lasting:
    """An incident. ``last_ns`` is the last moment at whose end its service suffered.

    ``until_ns`` is how long it suffered after that, in a moment at whose end it did not.
    ``ended_by`` is why the service did not suffer any more, as far as is known. It is forgotten if
    the service suffers again.
    """

    incident: Suffering
    last_ns: int
    until_ns: int
    parts: PartSums = field(default_factory=PartSums)
    ended_by: str = ""


class ServiceStory(Story):
    """The story of the service *name*."""

    def __init__(self, name: str, coverage: Coverage) -> None:
        super().__init__(coverage)
        self._name = name
        self._open: dict[Channel, _Lasting] = {}
        self._cookies = Cookies()
        self._evictions = Evictions()
        self._no_data = False
        self._episodes = Episodes()

    def begin(self, wall_ns: int, start: Start) -> None:
        """Take the knobs of *start* that were held before the first line that was read."""
        self._cookies.begin(wall_ns, start.writes)

    def take(self, wall_ns: int, moment: Moment) -> None:
        """Take a moment."""
        elapsed_ns = self.elapsed_ns(wall_ns)
        self._episodes.take(wall_ns, moment)
        found = loops_of(moment)
        loops = {channel: loop for (name, channel), loop in found.items() if name == self._name}
        for channel in {*loops, *self._open}:
            self._take_channel(wall_ns, moment, channel, loops.get(channel), elapsed_ns)
        self.take_pause(wall_ns, moment.pause, lambda pause: pause.covers_service(self._name))
        for cookie in self._cookies.take(wall_ns, moment, lambda _: True, "restored"):
            if cookie.service in (None, self._name):
                self.incidents.append(cookie)
        self.incidents += self._evictions.take(wall_ns, moment, None, self._name)
        self._take_no_data(wall_ns, moment)
        for verdict in moment.verdicts:
            if verdict.subject == self._name and verdict.text.startswith(SLOW):
                note = Note(
                    began_ns=wall_ns, ended_ns=wall_ns, event=NoteKind.VERDICT, text=verdict.text
                )
                self.incidents.append(note)

    def close(self, wall_ns: int | None, reason: str) -> None:
        """Close what lasts, because the agent ended; ``None``: it goes on."""
        if wall_ns is not None:
            self._cookies.end(wall_ns, reason)
            self._cookies.clear()
            self._episodes.clear()
        for channel in list(self._open):
            lasting = self._open[channel]
            if lasting.ended_by:
                self._end(channel, lasting.ended_by)
            elif wall_ns is not None:
                self._end(channel, reason, wall_ns)
            elif (lasting.incident.effect.highest or 0.0) < _LEAST:
                self.incidents.remove(lasting.incident)

    def _take_channel(
        self,
        wall_ns: int,
        moment: Moment,
        channel: Channel,
        loop: LoopReport | None,
        elapsed_ns: int,
    ) -> None:
        lasting = self._open.get(channel)
        bad = loop is not None and suffers(loop)
        demand = next((each for each in moment.demands if each.channel is channel), None)
        if lasting is not None and not 0 <= wall_ns - lasting.last_ns <= PAUSE_NS:
            # Also if it suffers again: a quiet time may have no record for a minute.
            self._end(channel, lasting.ended_by or _why_not(loop, demand))
            lasting = None
        if lasting is None:
            if not bad or loop is None:
                return
            incident = Suffering(began_ns=wall_ns, mode=moment.mode, channel=channel, loop=loop)
            self.incidents.append(incident)
            lasting = self._open[channel] = _Lasting(incident, wall_ns, wall_ns)
        incident = lasting.incident
        self._add_time(lasting, moment, wall_ns, elapsed_ns)
        if bad:
            lasting.last_ns = lasting.until_ns = wall_ns
            lasting.ended_by = ""
        elif not lasting.ended_by:
            lasting.ended_by = _why_not(loop, demand)
        episode = self._episodes.of(self._name, channel)
        if episode is not None:
            incident.effect, incident.loop = episode.effect, episode.loop
        self.take_cause(incident, moment, self._name)
        other = None if demand is None else demand.service
        if other is not None and other != self._name and other not in incident.others:
            incident.others.append(other)
        for write in moment.writes:
            orders = write.knob in ORDER and write.knob not in BACKSTOPS
            if write.held and (orders or channel in CHANNELS.get(write.knob, ())):
                self._add_write(incident, write)

    def _add_time(self, lasting: _Lasting, moment: Moment, wall_ns: int, elapsed_ns: int) -> None:
        """Add how long the service suffered in the *elapsed_ns* before *wall_ns*."""
        incident, total_ns = lasting.incident, 0
        for service, channel, state, limited, time_ns in self.suffered(moment, elapsed_ns):
            if (service, channel) == (self._name, incident.channel):
                total_ns += time_ns
                _add(incident.states_ns, state, time_ns)
                _add(incident.limited_ns, state, time_ns * limited)
        for cause in moment.causes:
            if (cause.service, cause.channel) == (self._name, incident.channel) and cause.parts:
                lasting.parts.add(cause.parts, total_ns)
                incident.parts = lasting.parts.largest()
        if incident.began_ns == wall_ns:
            incident.began_ns -= total_ns
        elif total_ns:
            lasting.until_ns = max(lasting.until_ns, wall_ns - elapsed_ns + total_ns)

    def _add_write(self, incident: Suffering, write: Write) -> None:
        for held in incident.limited:
            if (held.knob, held.target) == (write.knob, write.target.path):
                break
        else:
            held = held_knob(write)
            incident.limited.append(held)
        self.take_write(held, write)

    def _take_no_data(self, wall_ns: int, moment: Moment) -> None:
        blind = [
            demand.channel
            for demand in moment.demands
            if demand.state in (ChannelState.HOLD, ChannelState.SAFE)
        ]
        if bool(blind) is not self._no_data:
            self._no_data = bool(blind)
            text = f"no data on {', '.join(blind)}" if blind else "data again"
            note = Note(began_ns=wall_ns, ended_ns=wall_ns, event=NoteKind.NO_DATA, text=text)
            self.incidents.append(note)

    def _end(self, channel: Channel, reason: str, wall_ns: int | None = None) -> None:
        lasting = self._open.pop(channel)
        incident = lasting.incident
        incident.ended_ns = lasting.until_ns if wall_ns is None else wall_ns
        incident.ended_by = reason
        if (incident.effect.highest or 0.0) < _LEAST:
            self.incidents.remove(incident)


def _why_not(loop: LoopReport | None, demand: Demand | None) -> str:
    """Return why a service does not suffer, whose *loop* may be left out of a moment."""
    if loop is not None and loop.status is IndicatorStatus.IDLE:
        return "it was idle"
    blind = demand is not None and demand.state in (ChannelState.HOLD, ChannelState.SAFE)
    if blind or (loop is not None and loop.status in UNKNOWN):
        return "there was no data any more"
    return "its deviation was 0 or below"


def _add(times_ns: dict[str, int], state: str, time_ns: int) -> None:
    times_ns[state] = times_ns.get(state, 0) + time_ns
