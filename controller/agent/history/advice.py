# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What enforcing would bring, from moments: who suffered, from whom, and what would be taken.

Nothing here is a model of the node. In observe mode nothing reacts to the plans, so a service that
suffers keeps on suffering, the demand goes up to its stop, and the cut is what the floors take: an
upper bound. How much better the service would have been is not known; only the time in which
best-effort work would have been limited, or had yielded by sched-idle, can be better at all: an
upper bound too. What a service suffered is a lower bound where a channel had no data. Where the
history has times of both modes, they are given side by side.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from controller.agent.history.episodes import PartSums
from controller.agent.history.incidents import Coverage, Share
from controller.agent.history.records import Moment, SlowTime, Start, Suffered, Use, Write
from controller.agent.history.story import ORDER, Story
from controller.core.decision import ChannelState, LoopReport, Part, SlowBecause
from controller.core.in_force import BACKSTOPS, KnobKey, concerns
from controller.core.model import CgroupId, Channel, Knob, Mode, QosClass, Target
from controller.core.units import NS_PER_SEC
from controller.telemetry.suffering import OTHER, is_worse

__all__ = ("Advice", "ModeTime", "ServiceAdvice", "Taken", "Took")

_NO_DATA = (ChannelState.HOLD, ChannelState.SAFE)
# Where the order of tasks may help although nothing would be limited.
_ORDER_MAY_HELP = (ChannelState.FREE, OTHER, *_NO_DATA)


@dataclass(slots=True)
class ModeTime:
    """A service in one mode: for how long it suffered, by the state of its channel meanwhile.

    ``worst`` is its loop at the worst raw value. The state is ``other`` while another service
    decided for the channel. ``in_vain_ns`` is the part of ``states_ns`` in which enforcing would
    have changed nothing.
    """

    suffered_ns: int = 0
    states_ns: dict[str, int] = field(default_factory=dict)
    in_vain_ns: dict[str, int] = field(default_factory=dict)
    worst: LoopReport | None = None

    @property
    def gain_ns(self) -> int:
        """The most time in which enforcing can help."""
        return self.suffered_ns - sum(self.in_vain_ns.values())


@dataclass(slots=True)
class ServiceAdvice:
    """A service that suffered on a channel. ``culprits``: their average shares while it did.

    ``parts`` are the largest parts of all that hurt it, on average.
    """

    service: str
    channel: Channel
    modes: dict[Mode, ModeTime] = field(default_factory=dict)
    culprits: tuple[Share, ...] = ()
    be_share: float | None = None
    parts: tuple[Part, ...] = ()


@dataclass(slots=True)
class Took:
    """What enforcing took from best-effort work, in CPU seconds; an estimate.

    It is what limited workloads used before their limits, less what they used with them.
    ``used_cpu_s`` is the use of all best-effort work in ``measured_ns``, ``limited_ns`` the time in
    which a limit was in force.
    """

    used_cpu_s: float = 0.0
    taken_cpu_s: float = 0.0
    measured_ns: int = 0
    limited_ns: int = 0
    by_workload: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Taken:
    """CPU time of best-effort work in observe mode, in CPU seconds: used, and beyond its quotas.

    Both are those of ``measured_ns``, the time in which the use was measured. ``by_workload`` is
    the part of ``cut_cpu_s`` of the workloads with the largest use. ``evictions`` counts those that
    were decided, which are not in ``cut_cpu_s``.
    """

    used_cpu_s: float = 0.0
    cut_cpu_s: float = 0.0
    measured_ns: int = 0
    evictions: int = 0
    by_workload: dict[str, float] = field(default_factory=dict)


class Advice(Story):
    """The sums over the time that was asked for.

    ``observed_ns`` is the time in each mode, ``blind_ns`` that part of it in which a channel had no
    data. ``slow`` has for each service the causes for which it was slow, the longest first.
    """

    def __init__(self, coverage: Coverage) -> None:
        super().__init__(coverage)
        self.observed_ns: dict[Mode, int] = {}
        self.blind_ns: dict[Channel, dict[Mode, int]] = {}
        self.services: dict[tuple[str, Channel], ServiceAdvice] = {}
        self.slow: dict[str, list[SlowTime]] = {}
        self._slow: dict[tuple[str, SlowBecause, str], SlowTime] = {}
        self.taken = Taken()
        self.took = Took()
        # The use before its limit of each limited workload, in CPUs; ``None``: not measured.
        self._before: dict[CgroupId, float | None] = {}
        self._limits: dict[KnobKey, Write] = {}
        self._yielding: set[tuple[Target, Knob]] = set()
        self._shares: dict[tuple[str, Channel], dict[str, float]] = {}
        self._share_ns: dict[tuple[str, Channel], int] = {}
        self._parts: dict[tuple[str, Channel], PartSums] = {}

    def begin(self, wall_ns: int, start: Start) -> None:
        """Take the knobs of *start* that were held before the first line that was read."""
        self._take_order(start.writes)
        self._take_limits(start.writes, ())

    def take(self, wall_ns: int, moment: Moment) -> None:
        """Take a moment, which stands for the time since the one before."""
        self._take_order(moment.writes)
        if wall_ns < self.coverage.since_ns:
            self._take_limits(moment.writes, moment.uses)
            return
        elapsed_ns = self.elapsed_ns(wall_ns)
        self.observed_ns[moment.mode] = self.observed_ns.get(moment.mode, 0) + elapsed_ns
        for demand in moment.demands:
            if demand.state in _NO_DATA:
                blind = self.blind_ns.setdefault(demand.channel, {})
                blind[moment.mode] = blind.get(moment.mode, 0) + elapsed_ns
        for each in moment.slow:
            cause = each.service, each.because, each.name
            known_ns = self._slow[cause].time_ns if cause in self._slow else 0
            self._slow[cause] = each._replace(time_ns=known_ns + each.time_ns)
        for suffered in self.suffered(moment, elapsed_ns):
            self._add(suffered, moment)
        if moment.mode is Mode.OBSERVE:
            self._add_cut(moment, elapsed_ns)
        else:
            self._add_taken(moment, elapsed_ns)
        self._take_limits(moment.writes, moment.uses)

    def close(self, wall_ns: int | None, reason: str) -> None:
        """Compute the averages; nothing lasts over a restart."""
        if wall_ns is not None:
            self._yielding.clear()
            self._before.clear()
            self._limits.clear()
        self.slow = {}
        for slow in sorted(self._slow.values(), key=lambda each: -each.time_ns):
            self.slow.setdefault(slow.service, []).append(slow)
        for key, parts in self._parts.items():
            self.services[key].parts = parts.largest()
        for key, shares in self._shares.items():
            total_ns = self._share_ns[key]
            advice = self.services[key]
            named = [Share(name, round(sum_ns / total_ns, 4)) for name, sum_ns in shares.items()]
            named.sort(key=lambda each: -each.share)
            advice.be_share = next((each.share for each in named if not each.workload), None)
            advice.culprits = tuple(each for each in named if each.workload)[:5]

    @property
    def best_effort(self) -> int:
        """How many best-effort workloads there are at the end."""
        return sum(each.qos is QosClass.BE for each in self.workloads)

    @property
    def has_services(self) -> bool:
        """Whether there was a service at any time."""
        return any(each.qos is QosClass.LS for each in self.known.values())

    def _take_order(self, writes: tuple[Write, ...]) -> None:
        for write in writes:
            if write.knob in ORDER and write.knob not in BACKSTOPS:
                place = write.target, write.knob
                (self._yielding.add if write.held else self._yielding.discard)(place)

    def _add(self, suffered: Suffered, moment: Moment) -> None:
        service, channel, state, limited, time_ns = suffered
        key = service, channel
        advice = self.services.setdefault(key, ServiceAdvice(*key))
        times = advice.modes.setdefault(moment.mode, ModeTime())
        times.suffered_ns += time_ns
        times.states_ns[state] = times.states_ns.get(state, 0) + time_ns
        yields = bool(self._yielding) and state in _ORDER_MAY_HELP
        if not (state == ChannelState.SQUEEZE or limited or yields):
            times.in_vain_ns[state] = times.in_vain_ns.get(state, 0) + time_ns
        for loop in (*moment.loops, *moment.worst):
            is_own = (loop.service, loop.channel) == key
            if is_own and (times.worst is None or is_worse(loop, times.worst)):
                times.worst = loop
        for cause in moment.causes:
            if (cause.service, cause.channel) == key and cause.parts:
                self._parts.setdefault(key, PartSums()).add(cause.parts, time_ns)
            if (cause.service, cause.channel) == key and cause.be_share is not None and time_ns:
                sums = self._shares.setdefault(key, {})
                self._share_ns[key] = self._share_ns.get(key, 0) + time_ns
                # The sum over all best-effort work has no name.
                for name, share in [
                    ("", cause.be_share),
                    *((each.workload, each.share) for each in self.shares(cause)),
                ]:
                    sums[name] = sums.get(name, 0.0) + share * time_ns

    def _take_limits(self, writes: Iterable[Write], uses: Iterable[Use]) -> None:
        """Take what *writes* limit, and how much the workloads *uses* before."""
        changed = False
        for write in writes:
            key = write.target.place, write.knob
            if not write.held:
                changed = self._limits.pop(key, None) is not None or changed
            elif key not in self._limits and self.limits(write):
                self._limits[key] = write
                changed = True
        if not changed:
            return
        used = {each.cgroup: each.cpus for each in uses}
        limited = [
            each.cgroup
            for each in self.workloads
            if each.qos is QosClass.BE
            and any(concerns(w.target, w.knob, each) for w in self._limits.values())
        ]
        self._before = {each: self._before.get(each, used.get(each)) for each in limited}

    def _add_taken(self, moment: Moment, elapsed_ns: int) -> None:
        took, elapsed_s = self.took, elapsed_ns / NS_PER_SEC
        took.limited_ns += elapsed_ns * bool(self._before)
        if moment.be_use_cpus is None:
            return
        took.measured_ns += elapsed_ns
        took.used_cpu_s += moment.be_use_cpus * elapsed_s
        for use in moment.uses:
            before = self._before.get(use.cgroup)
            if before is not None and before > use.cpus:
                name = self.names.get(use.cgroup, f"cgroup {use.cgroup.id}")
                part = (before - use.cpus) * elapsed_s
                took.taken_cpu_s += part
                took.by_workload[name] = took.by_workload.get(name, 0.0) + part

    def _add_cut(self, moment: Moment, elapsed_ns: int) -> None:
        taken, elapsed_s = self.taken, elapsed_ns / NS_PER_SEC
        taken.evictions += len(moment.evictions)
        if moment.be_use_cpus is None:
            return
        taken.measured_ns += elapsed_ns
        taken.used_cpu_s += moment.be_use_cpus * elapsed_s
        taken.cut_cpu_s += moment.cut_cpus * elapsed_s
        for use in moment.uses:
            if use.granted is not None and use.cpus > use.granted:
                name = self.names.get(use.cgroup, f"cgroup {use.cgroup.id}")
                part = (use.cpus - use.granted) * elapsed_s
                taken.by_workload[name] = taken.by_workload.get(name, 0.0) + part
