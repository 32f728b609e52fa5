# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which best-effort workloads slow the services down that suffer: models, claims, probes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from controller.core.decision import Action, ChannelState
from controller.core.harm.cut import LEAST_HARM, Claim, Deeds
from controller.core.harm.harm_model import CERTAIN, HarmModel
from controller.core.indicators.own_figure import gain, pace_of
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.loop.channel_loops import ChannelLoops
from controller.core.model import CgroupId
from controller.core.settings import MicroProbeLimits
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import WorkloadIndex

__all__ = ("HarmFinder", "MicroProbes")

# Services with a model at the same time, which bounds the cost of a tick.
_MOST_SERVICES = 3
_KEEP_NS = 120 * NS_PER_SEC
# The least time between two probes, so that the service is seen without one as well.
_GAP_NS = 200_000_000
# Probes that a workload may have at once after a quiet minute.
_BURST = 3.0


@dataclass(slots=True)
class HarmFinder:
    """The models of the services that suffer."""

    _models: dict[str, HarmModel] = field(default_factory=dict)
    _suffered_ns: dict[str, int] = field(default_factory=dict)

    def update(
        self,
        tracker: IndicatorTracker,
        workload_index: WorkloadIndex,
        loops: ChannelLoops,
        now_ns: int,
        dt_ns: int,
    ) -> None:
        """Take one tick; *loops* are those of the channel whose squeeze is shared by harm."""
        services = workload_index.services
        for name in loops.suffering:
            if name in self._models or len(self._models) < _MOST_SERVICES:
                self._suffered_ns[name] = now_ns
                self._models.setdefault(name, HarmModel())
        for name in [*self._models]:
            if name not in services or now_ns - self._suffered_ns[name] > _KEEP_NS:
                del self._models[name], self._suffered_ns[name]
        if not self._models or dt_ns <= 0:
            return
        changed = tracker.samples.changed
        use = {
            cgroup: gain(*changed[cgroup], "oncpu_ns") / dt_ns if cgroup in changed else 0.0
            for cgroup in tracker.active
            if cgroup in workload_index.best_effort
        }
        for name, model in self._models.items():
            found = pace_of(services[name], changed, dt_ns)
            if found is not None:
                model.update(*found, use, dt_ns / NS_PER_SEC)

    def forget_certainty(self) -> None:
        """Take all harm for unknown, around what is known: other knobs limit the workloads now."""
        for model in self._models.values():
            model.forget_certainty()

    def certain(self, service: str) -> Mapping[CgroupId, float]:
        """Return the slowdown of *service* (logarithm) that is certainly each workload's.

        Empty if all of it together is not worth mention.
        """
        model = self._models.get(service)
        if model is not None:
            for deeds in (model.deeds(CERTAIN), model.all_deeds()):
                if sum(deeds.values()) >= LEAST_HARM:
                    return deeds
        return {}

    def harmless(self, charges: Mapping[str, float]) -> frozenset[CgroupId]:
        """Return the workloads that harm none of the services with *charges*, as far as is known.

        Empty where the model of one of them is not sure which workload harms.
        """
        models = [self._models.get(name) for name in charges]
        known = [each.harmless() for each in models if each is not None and _trust(each) > 0]
        is_sure = known and len(known) == len(models)
        return frozenset.intersection(*known) if is_sure else frozenset()

    def share(
        self, service: str, excess: float, use: Mapping[CgroupId, float] | None = None
    ) -> float | None:
        """Return best-effort's certain part of *excess* (logarithm), 0 to 1; ``None``: unknown.

        Certain harm is all of an excess of 0 or less: it would hurt if it were not squeezed. The
        harm is that at the usual use, or that at *use*, in CPUs.
        """
        certain = self.certain(service)
        if not certain:
            return None
        if use is not None:
            usual = self._models[service].reach
            certain = {
                cgroup: harm * min(1.0, use.get(cgroup, 0.0) / usual[cgroup])
                for cgroup, harm in certain.items()
                if harm > 0
            }
        return min(1.0, sum(certain.values()) / excess) if excess > 0 else 1.0

    def doubts(self, loops: ChannelLoops, shares: bool) -> Mapping[CgroupId, float]:
        """Return how much slowdown each workload might cause, where it is of use to know.

        That is for services for which a cut *shares* among workloads, and for those that suffer
        and lack evidence; not after a trial that showed that squeezes are of no use.
        """
        found: dict[CgroupId, float] = {}
        if loops.most is not None:
            return found
        charges = loops.charges
        for name, model in self._models.items():
            if (shares and name in charges) or loops.of(name).state is ChannelState.NOT_BE:
                for cgroup, doubt in model.doubts().items():
                    found[cgroup] = max(doubt, found.get(cgroup, 0.0))
        return found

    def claims(
        self,
        weight: float,
        charges: Mapping[str, float],
        other: Deeds,
        use: Mapping[CgroupId, float],
    ) -> list[Claim]:
        """Return the claims of *weight* together; without certain harm they rest on *other*."""
        total = sum(charges.values())
        claims = []
        rest = weight
        for name, charge in charges.items():
            model = self._models.get(name)
            if model is None:
                continue
            part = weight * charge / total * _trust(model)
            if part > 0:
                rest -= part
                claims.append(Claim(part, model.deeds(), model.reach))
        return [*claims, Claim(rest, other, use)]


def _trust(model: HarmModel) -> float:
    """Return how much a model counts beside other evidence, 0 to 1; from half of certain on."""
    half = CERTAIN / 2
    return min(1.0, max(0.0, (model.certainty - half) / half))


class _Probe(NamedTuple):
    cgroup: CgroupId
    cpus: float
    end_ns: int


@dataclass(slots=True)
class MicroProbes:
    """Short cuts of one best-effort workload at random, to find out whether it hurts.

    Random moments, so that no rhythm of a service or a workload looks like an effect. The random
    numbers come from the time of the tick, so a recording replays to the same probes.
    """

    _probe: _Probe | None = None
    _next_ns: int = 0
    # The workload that is probed, or was until this tick.
    _touched: CgroupId | None = None
    # For each workload, the probes that it may have, and when that was computed.
    _budgets: dict[CgroupId, tuple[float, int]] = field(default_factory=dict)

    def update(
        self,
        doubts: Mapping[CgroupId, float],
        amounts: Mapping[CgroupId, float],
        floor: float,
        limits: MicroProbeLimits,
        now_ns: int,
    ) -> Mapping[CgroupId, float]:
        """Return the CPUs of the workload that is probed now; empty if none is.

        *doubts* is how much slowdown each workload might cause, of those that may be probed,
        *amounts* the CPUs that it has now. No probe leaves less than *floor*.
        """
        probe = self._probe
        self._touched = None if probe is None else probe.cgroup
        if probe is not None and (now_ns >= probe.end_ns or probe.cgroup not in doubts):
            self._probe = probe = None
            self._next_ns = now_ns + _GAP_NS + int(_random(now_ns, 1) * 2 * _GAP_NS)
        if probe is None and doubts and limits.per_minute > 0 and now_ns >= self._next_ns:
            self._probe = probe = self._choose(doubts, amounts, floor, limits, now_ns)
        if probe is None:
            return {}
        self._touched = probe.cgroup
        return {probe.cgroup: probe.cpus}

    def explain(self, actions: list[Action]) -> list[Action]:
        """Return *actions*, with a reason of its own for each that begins or ends a probe."""
        touched = self._touched
        return [
            replace(each, reason="micro-probe: whether this workload hurts a service that suffers")
            if touched is not None and each.target.place == touched
            else each
            for each in actions
        ]

    def _choose(
        self,
        doubts: Mapping[CgroupId, float],
        amounts: Mapping[CgroupId, float],
        floor: float,
        limits: MicroProbeLimits,
        now_ns: int,
    ) -> _Probe | None:
        self._refill(doubts, limits, now_ns)
        keep = 1.0 - limits.depth_ratio
        chances = {
            cgroup: doubt * doubt
            for cgroup, doubt in doubts.items()
            if doubt >= LEAST_HARM
            and self._budgets[cgroup][0] >= 1.0
            and keep * amounts[cgroup] >= floor
        }
        left = _random(now_ns, 0) * sum(chances.values())
        for cgroup, chance in chances.items():
            left -= chance
            if left <= 0:
                self._budgets[cgroup] = self._budgets[cgroup][0] - 1.0, now_ns
                return _Probe(cgroup, keep * amounts[cgroup], now_ns + limits.length_ns)
        return None

    def _refill(
        self, present: Mapping[CgroupId, float], limits: MicroProbeLimits, now_ns: int
    ) -> None:
        before = self._budgets
        per_ns = limits.per_minute / (60 * NS_PER_SEC)
        self._budgets = {}
        for cgroup in present:
            budget, then_ns = before.get(cgroup, (_BURST, now_ns))
            self._budgets[cgroup] = min(_BURST, budget + per_ns * (now_ns - then_ns)), now_ns


def _random(now_ns: int, salt: int) -> float:
    """Return a number from 0 to 1 that looks random (SplitMix64 of Steele et al., OOPSLA 2014)."""
    state = (now_ns * 2 + salt + 1) * 0x9E3779B97F4A7C15 % 2**64
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
    return (state ^ state >> 31) / 2.0**64
