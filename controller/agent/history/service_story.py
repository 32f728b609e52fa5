# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The story of a service: when it suffered, from what, what was tried, and whether that helped."""

from controller.agent.history.incidents import Coverage, Note, NoteKind, Suffering, suffers
from controller.agent.history.records import Moment, Write
from controller.agent.history.story import (
    CHANNELS,
    ORDER,
    Evictions,
    Story,
    held_knob,
    measure,
    move,
)
from controller.core.decision import ChannelState, LoopReport
from controller.core.model import Channel
from controller.core.units import NS_PER_SEC

__all__ = ("ServiceStory",)

# A service that is above its sweet point again within this time has one incident.
_PAUSE_NS = 30 * NS_PER_SEC
# A suffering below this deviation is within the dead zone of its loop.
_LEAST = 0.1


class ServiceStory(Story):
    """The story of the service *name*."""

    def __init__(self, name: str, coverage: Coverage) -> None:
        super().__init__(coverage)
        self._name = name
        self._open: dict[Channel, tuple[Suffering, int]] = {}
        self._evictions = Evictions()
        self._no_data = False

    def take(self, wall_ns: int, moment: Moment) -> None:
        """Take a moment."""
        elapsed_ns = self.elapsed_ns(wall_ns)
        loops: dict[Channel, LoopReport] = {}
        for loop in moment.loops:
            if loop.service == self._name:
                worst = loops.get(loop.channel)
                if worst is None or _deviation(loop) > _deviation(worst):
                    loops[loop.channel] = loop
        for channel in {*loops, *self._open}:
            self._take_channel(wall_ns, moment, channel, loops.get(channel), elapsed_ns)
        self.take_pause(wall_ns, moment.pause, lambda pause: pause.covers_service(self._name))
        self.incidents += self._evictions.take(wall_ns, moment, None, self._name)
        self._take_no_data(wall_ns, moment)

    def close(self, wall_ns: int | None, reason: str) -> None:
        """Close what lasts, because the agent ended; ``None``: it goes on."""
        for channel in list(self._open):
            incident, last_ns = self._open[channel]
            if wall_ns is not None:
                self._end(channel, reason, wall_ns)
            elif self._wall_ns is not None and self._wall_ns - last_ns > _PAUSE_NS:
                self._end(channel, "its deviation was 0 or below")
            elif (incident.effect.highest or 0.0) < _LEAST:
                self.incidents.remove(incident)

    def _take_channel(
        self,
        wall_ns: int,
        moment: Moment,
        channel: Channel,
        loop: LoopReport | None,
        elapsed_ns: int,
    ) -> None:
        found = self._open.get(channel)
        bad = loop is not None and suffers(loop)
        if found is None:
            if not bad or loop is None:
                return
            incident = Suffering(began_ns=wall_ns, mode=moment.mode, channel=channel, loop=loop)
            self.incidents.append(incident)
        else:
            incident, last_ns = found
            if not bad and wall_ns - last_ns > _PAUSE_NS:
                self._end(channel, "its deviation was 0 or below")
                return
        self._open[channel] = incident, wall_ns if bad or found is None else found[1]
        if loop is not None and measure(incident, incident.effect, wall_ns, loop):
            incident.loop = loop
        self._add_state(incident, moment, elapsed_ns if found is not None else 0)

    def _add_state(self, incident: Suffering, moment: Moment, elapsed_ns: int) -> None:
        channel = incident.channel
        demand = next((each for each in moment.demands if each.channel is channel), None)
        if demand is not None:
            states = incident.states_ns
            states[demand.state] = states.get(demand.state, 0) + elapsed_ns
            other = demand.service
            if other is not None and other != self._name and other not in incident.others:
                incident.others.append(other)
        for cause in moment.causes:
            own = cause.channel is channel and cause.service == self._name
            if own and (incident.be_share or 0.0) < (cause.be_share or 0.0):
                incident.be_share = cause.be_share
                incident.culprits = self.shares(cause) or incident.culprits
        for write in moment.writes:
            if write.held and (write.knob in ORDER or channel in CHANNELS.get(write.knob, ())):
                self._add_write(incident, write)

    @staticmethod
    def _add_write(incident: Suffering, write: Write) -> None:
        for held in incident.limited:
            if (held.knob, held.target) == (write.knob, write.target.path):
                break
        else:
            held = held_knob(write)
            incident.limited.append(held)
        move(held, write)

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
        incident, last_ns = self._open.pop(channel)
        incident.ended_ns = last_ns if wall_ns is None else wall_ns
        incident.ended_by = reason
        if (incident.effect.highest or 0.0) < _LEAST:
            self.incidents.remove(incident)


def _deviation(loop: LoopReport) -> float:
    return loop.filtered_deviation or 0.0
