# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The story of a best-effort workload: when and why it was limited, and whether that helped."""

from collections.abc import Iterable

from actuators.core_scheduling.cookie import BEST_EFFORT
from controller.agent.history.cookies import Cookies
from controller.agent.history.episodes import Episodes
from controller.agent.history.incidents import Coverage, Held, Note, NoteKind, Squeeze, suffers
from controller.agent.history.records import Asked, Moment, Start, Write
from controller.agent.history.story import ORDER, Evictions, Story, held_knob
from controller.core.decision import ChannelState
from controller.core.in_force import CHANNELS
from controller.core.knob_values import write_text
from controller.core.model import Channel, Knob, Mode, QosClass, Target, TargetKind

__all__ = ("WorkloadStory",)

_Place = tuple[Target, Knob]
_OTHER_CAUSES = {
    ChannelState.SELF: "the service was held back by its own limit",
    ChannelState.STEAL: "the host takes CPU time away",
    ChannelState.NOT_BE: "best-effort is not the cause",
    ChannelState.HOLD: "there is no data",
    ChannelState.SAFE: "there is no data, safe state",
    ChannelState.PAUSED: "the service is paused",
}


class WorkloadStory(Story):
    """The story of the best-effort workload *name*, or of the containers of the pod *name*."""

    def __init__(self, name: str, coverage: Coverage) -> None:
        super().__init__(coverage)
        self._name = name
        self._names = {name}
        self._whole = name
        self._own: set[tuple[str, int]] = set()
        self._idle: set[tuple[str, int]] = set()
        self._memory: set[tuple[str, int]] = set()
        self._parents: set[tuple[str, int]] = set()
        self._groups: set[str] = set()
        self._best_effort = False
        self._present = False
        self._squeeze: Squeeze | None = None
        self._open: dict[_Place, Held] = {}
        # The last write to each knob of several workloads that is held, also while it does not
        # concern this one: it is paused, or did not exist yet.
        self._shared: dict[_Place, Write] = {}
        self._ordered: set[Knob] = set()
        self._cookies = Cookies()
        self._evictions = Evictions()
        self._episodes = Episodes()
        # For whom a knob was written, by the reason of the write.
        self._asked: dict[str, Asked] = {}

    def workloads_changed(self) -> None:
        """Find the cgroups of the workload."""
        found = [each for each in self.workloads if self._name in (each.name, each.whole_name)]
        self._present = bool(found)
        # Those of best-effort work only: a workload may have another class than before.
        best_effort = [each for each in found if each.qos is QosClass.BE]
        self._groups = {each.core_group or BEST_EFFORT for each in best_effort}
        self._parents = {each.quota_at[1:3] for each in best_effort if each.quota_at is not None}
        limited = (at for each in best_effort for at in (each.memory_at, each.own_memory_at))
        self._memory = {at[1:3] for at in limited if at is not None}
        if not found:
            return
        self._names.update(each.name for each in found)
        self._whole = found[0].whole_name
        self._best_effort = any(each.qos is QosClass.BE for each in found)
        self._own = {(each.cgroup.hierarchy, each.cgroup.id) for each in found}
        self._idle = {each.idle_at[1:3] for each in found if each.idle_at is not None} | self._own
        # Cgroups of containers that ended, which are not restored.
        self._open = {
            place: held
            for place, held in self._open.items()
            if self._concerns(*place) or place in self._shared
        }

    def begin(self, wall_ns: int, start: Start) -> None:
        """Take the knobs of *start* that were held before the first line that was read."""
        self._cookies.begin(wall_ns, start.writes)
        moment = Moment(time_ns=0, mode=start.mode, writes=start.writes, asked=start.asked)
        self._take_writes(wall_ns, moment)

    def take(self, wall_ns: int, moment: Moment) -> None:
        """Take a moment."""
        self._episodes.take(wall_ns, moment)
        if self._squeeze is not None and not (self._present and self._open):
            self._end(wall_ns, "the workload ended")
        uses = [each.cpus for each in moment.uses if tuple(each.cgroup) in self._own]
        use = sum(uses) if uses else None
        for foreign in moment.foreign:
            if self._concerns(foreign.target, foreign.knob):
                written = write_text(foreign.knob, foreign.target.path, foreign.value)
                text = (
                    f"another program set {written}, which was {foreign.ours!r} by this agent; its "
                    "value is the original now"
                )
                self._note(wall_ns, NoteKind.FOREIGN, text)
                self._open.pop((foreign.target, foreign.knob), None)
                self._shared.pop((foreign.target, foreign.knob), None)
                if self._squeeze is not None and not self._open:
                    self._end(wall_ns, "another program wrote the knob")
        for outcome in moment.refused:
            if self._concerns(outcome.action.target, outcome.action.knob):
                text = f"{outcome.action.knob} of {outcome.action.target.path}: {outcome.message}"
                self._note(wall_ns, NoteKind.REFUSED, f"the kernel refused a write: {text}")
        lasting = self._squeeze
        self.take_pause(wall_ns, moment.pause, lambda pause: pause.covers_workload(self._whole))
        self._take_writes(wall_ns, moment)
        if self._squeeze is not None:
            self._follow(wall_ns, moment, self._squeeze)
            if self._squeeze is not lasting:
                self._squeeze.use_before_cpus = use
            elif use is not None:
                _average(self._squeeze, use, self.elapsed_ns(wall_ns))
        self._take_cookies(wall_ns, moment)
        self.incidents += self._evictions.take(wall_ns, moment, self._whole, None)
        for verdict in moment.verdicts:
            paths = {self._path(place) for place in self._open}
            if verdict.subject in paths and verdict.subject != self._name:
                self._note(wall_ns, NoteKind.VERDICT, verdict.text)

    def close(self, wall_ns: int | None, reason: str) -> None:
        """Close what lasts, because the agent ended; ``None``: it goes on."""
        if wall_ns is not None:
            if self._squeeze is not None:
                self._end(wall_ns, reason)
            self._open.clear()
            self._shared.clear()
            self._ordered.clear()
            self._cookies.end(wall_ns, reason)
            self._cookies.clear()
            self._episodes.clear()

    def _concerns(self, target: Target, knob: Knob) -> bool:
        if target.kind is TargetKind.CORE_GROUP:
            return target.path in self._groups
        if target.kind is TargetKind.CGROUP:
            if knob is Knob.CPU_QUOTA and target[1:3] in self._parents:
                return not self.paused
            above = {
                Knob.SCHED_IDLE: self._idle,
                Knob.MEMORY_MAX: self._memory,
                Knob.CPUSET: self._parents | self._idle,
            }
            return target[1:3] in above.get(knob, self._own)
        return self._best_effort and self._present and not self.paused and _is_everyones(target)

    @staticmethod
    def _path(place: _Place) -> str:
        return place[0].path

    def _take_writes(self, wall_ns: int, moment: Moment) -> None:
        self._asked = {each.reason: each for each in moment.asked}
        # A moment may stand for a minute.
        began = {
            (each.target, each.knob): wall_ns - max(0, moment.time_ns - each.since_ns)
            for each in moment.since
        }
        for write in moment.writes:
            place = write.target, write.knob
            if self.is_parent(write.target) or _is_everyones(write.target):
                self._keep(place, write)
            if not self._concerns(*place) or write.knob is Knob.CORE_COOKIE:
                continue
            if write.knob in ORDER:
                self._take_order(wall_ns, write, moment.mode)
            elif write.held:
                self._hold(began.get(place, wall_ns), place, write, moment.mode)
            else:
                self._release(wall_ns, place, moment)
        for place, write in self._shared.items():
            if self._concerns(*place) and place not in self._open:
                self._hold(wall_ns, place, write, moment.mode)
        for place in list(self._open):
            if not self._concerns(*place):
                self._release(wall_ns, place, moment)

    def _keep(self, place: _Place, write: Write) -> None:
        if write.held and write.knob not in ORDER:
            before = self._shared.get(place, write).before
            self._shared[place] = write._replace(before=before)
        else:
            self._shared.pop(place, None)

    def _hold(self, wall_ns: int, place: _Place, write: Write, mode: Mode) -> None:
        if self._squeeze is None:
            self._squeeze = Squeeze(began_ns=wall_ns, mode=mode)
            self.incidents.append(self._squeeze)
        held = self._open.get(place)
        if held is None:
            held = held_knob(write)
            self._open[place] = held
            self._squeeze.knobs.append(held)
        self.take_write(held, write)
        asked = self._asked.get(write.reason)
        squeeze = self._squeeze
        if asked is None or asked.service is None:
            return
        if squeeze.service is None:
            squeeze.service, squeeze.channel = asked.service, asked.channel
        elif asked.service not in (squeeze.service, *squeeze.also):
            squeeze.also.append(asked.service)

    def _release(self, wall_ns: int, place: _Place, moment: Moment) -> None:
        if self._open.pop(place, None) is not None and not self._open:
            self._end(wall_ns, _end_reason(moment, self._channel))

    def _take_order(self, wall_ns: int, write: Write, mode: Mode) -> None:
        if write.held is (write.knob in self._ordered):
            return
        (self._ordered.add if write.held else self._ordered.discard)(write.knob)
        on = "on" if write.held else "off"
        if mode is Mode.OBSERVE:
            on = f"would be {on}"
        self._note(wall_ns, NoteKind.ORDER, f"{ORDER[write.knob]} {on}: {write.reason}")

    def _take_cookies(self, wall_ns: int, moment: Moment) -> None:
        groups = set() if self.paused else self._groups
        reason = "the workload ended" if not self._present else "restored"
        self.incidents += self._cookies.take(
            wall_ns, moment, groups.__contains__, "paused" if self.paused else reason
        )

    @property
    def _channel(self) -> Channel | None:
        return None if self._squeeze is None else self._squeeze.channel

    def _follow(self, wall_ns: int, moment: Moment, squeeze: Squeeze) -> None:
        if squeeze.channel is None:
            squeeze.channel = _channel_of(self._open, moment)
        if squeeze.service is None:  # of an agent that did not say for whom it wrote
            squeeze.service = _selected(moment, squeeze.channel)
        episode = self._episodes.of(squeeze.service, squeeze.channel)
        if episode is not None:
            highest = squeeze.effect.highest
            if highest is None or (episode.effect.highest or 0.0) > highest:
                squeeze.effect = episode.effect
            if squeeze.effect is episode.effect:
                squeeze.loop = episode.loop
        if self.take_cause(squeeze, moment, squeeze.service):
            mine = [each.share for each in squeeze.culprits if each.workload in self._names]
            squeeze.own_share = sum(mine) if mine else None

    def _end(self, wall_ns: int, reason: str) -> None:
        if self._squeeze is not None:
            self._squeeze.ended_ns = wall_ns
            self._squeeze.ended_by = reason
            self._squeeze = None
        self._open.clear()

    def _note(self, wall_ns: int, event: NoteKind, text: str) -> None:
        self.incidents.append(Note(began_ns=wall_ns, ended_ns=wall_ns, event=event, text=text))


def _is_everyones(target: Target) -> bool:
    """Whether the knobs of *target* limit all best-effort work."""
    return target.kind in (TargetKind.RESCTRL_GROUP, TargetKind.LINK)


def _selected(moment: Moment, channel: Channel | None) -> str | None:
    found = (each for each in moment.loops if each.selected and each.channel is channel)
    return next((each.service for each in found), None)


def _channel_of(places: Iterable[_Place], moment: Moment) -> Channel | None:
    """Return the channel with the largest demand that one of the knobs of *places* belongs to."""
    possible = {channel for _, knob in places for channel in CHANNELS.get(knob, ())}
    demands = [each for each in moment.demands if each.channel in possible]
    return max(demands, key=lambda each: each.applied).channel if demands else None


def _end_reason(moment: Moment, channel: Channel | None) -> str:
    if moment.pause is not None:
        return "released: paused"
    demand = next((each for each in moment.demands if each.channel is channel), None)
    if demand is not None and demand.state in _OTHER_CAUSES:
        return f"released: {_OTHER_CAUSES[demand.state]}"
    suffering = sorted({each.service for each in moment.loops if suffers(each)})
    if suffering:
        return f"released, although {suffering[0]} suffers"
    return "released: no service is above its sweet point"


def _average(squeeze: Squeeze, use_cpus: float, elapsed_ns: int) -> None:
    total_ns = squeeze.use_ns + elapsed_ns
    if total_ns:
        before = squeeze.use_cpus or 0.0
        squeeze.use_cpus = before + (use_cpus - before) * elapsed_ns / total_ns
        squeeze.use_ns = total_ns
