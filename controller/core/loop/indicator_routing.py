# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Assignment of indicators to channels.

The profile gives the channel of an indicator. The exception is the service's own figure (its
request latency, for instance), which shows that the service suffers, but not on which resource.
While it is above its sweet point it is assigned, every 10 s, to the channel whose other indicators
deviate most. Without such an indicator, or if all of them are at the bottom of the scale, it is on
the cache channel: there any harm can be found, also that of waits for a CPU, and the last knob is
the quota. Below the sweet point the assignment stays.
"""

from collections.abc import Mapping

from controller.core.loop.channel_loops import ChannelLoops, Specs
from controller.core.loop.pid import LOWEST
from controller.core.model import Channel, IndicatorName
from controller.core.settings import IndicatorSpec, Profile
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import Service, WorkloadIndex

__all__ = ("IndicatorRouting",)

_REASSIGN_NS = 10 * NS_PER_SEC


class IndicatorRouting:
    """The indicators of each channel; keeps the channel of each service's own figure."""

    __slots__ = ("_assigned", "_since_ns", "_specs", "_workload_index")

    def __init__(self) -> None:
        self._workload_index: WorkloadIndex | None = None
        self._assigned: dict[str, Channel] = {}
        self._since_ns: dict[str, int] = {}
        self._specs: dict[Channel, Specs] = {}

    def update(
        self, workload_index: WorkloadIndex, loops: Mapping[Channel, ChannelLoops], now_ns: int
    ) -> Mapping[Channel, Specs]:
        """Return the indicators of every channel by service; *loops* are those of the last tick.

        The result is the same object until it changes.
        """
        changed = workload_index is not self._workload_index
        self._workload_index = workload_index
        if changed:
            self._assigned = {
                name: self._kept(service) or _default(service)
                for name, service in workload_index.services.items()
                if any(_is_own(spec) for spec in service.profile.indicators)
            }
            self._since_ns = {
                name: since_ns
                for name, since_ns in self._since_ns.items()
                if name in self._assigned
            }
        for name, channel in self._assigned.items():
            hurting = (loops[channel].of(name).deviations.get(IndicatorName.SERVICE) or 0.0) > 0
            if not hurting or now_ns - self._since_ns.get(name, -_REASSIGN_NS) < _REASSIGN_NS:
                continue
            self._since_ns[name] = now_ns
            best = _most_deviating(workload_index.services[name], loops)
            changed = changed or best is not channel
            self._assigned[name] = best
        if changed:
            self._specs = {channel: self._of(channel, workload_index) for channel in Channel}
        return self._specs

    def _kept(self, service: Service) -> Channel | None:
        """Return the channel of a service's own figure unless the profile no longer has it."""
        channel = self._assigned.get(service.name)
        return channel if channel in service.profile.channels else None

    def _of(self, channel: Channel, workload_index: WorkloadIndex) -> Specs:
        # Hundreds of services share a few profiles, and so the tuples.
        # By identity, because learned profiles have the name of the one that they are made from.
        by_profile: dict[tuple[int, Channel | None], tuple[IndicatorSpec, ...]] = {}
        found = {}
        for name, service in workload_index.services.items():
            own = self._assigned.get(name)
            key = (id(service.profile), own)
            if key not in by_profile:
                by_profile[key] = _specs_of(service.profile, channel, own)
            if specs := by_profile[key]:
                found[name] = specs
        return found


def _specs_of(profile: Profile, channel: Channel, own: Channel | None) -> tuple[IndicatorSpec, ...]:
    """Return the indicators on *channel*; the service's own figure is on *own*."""
    if channel not in profile.channels:
        return ()
    return tuple(
        spec for spec in profile.indicators if (own if _is_own(spec) else spec.channel) is channel
    )


def _default(service: Service) -> Channel:
    channels = service.profile.channels
    return Channel.CACHE if Channel.CACHE in channels else channels[0]


def _is_own(spec: IndicatorSpec) -> bool:
    return spec.name is IndicatorName.SERVICE


def _most_deviating(service: Service, loops: Mapping[Channel, ChannelLoops]) -> Channel:
    best, worst = _default(service), LOWEST
    for channel, each in loops.items():
        deviation = each.worst_deviation(service.name, without=IndicatorName.SERVICE)
        if channel in service.profile.channels and deviation is not None and deviation > worst:
            best, worst = channel, deviation
    return best
