# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Which loops belong to which channel.

An indicator's channel is its profile's choice, but for a service's own latency: that tells that
something is wrong and not what. While it is off, it moves the channel whose own indicators
deviate most from their sweet points, and cpu where none of them says anything.
"""

from collections.abc import Mapping

from controller.core.control.channel_loops import ChannelLoops, Specs
from controller.core.model import Channel, IndicatorName
from controller.core.settings import IndicatorSpec, Profile
from controller.core.units import NS_PER_SEC
from controller.core.workload_index import Service, WorkloadIndex

__all__ = ("IndicatorRouting",)

_RECHOOSE_NS = 10 * NS_PER_SEC
# The bottom of the scale: an indicator that is at least a tolerance below its sweet point.
_SAYS_NOTHING = -1.0


class IndicatorRouting:
    """Remembers the channel of each service's own latency."""

    __slots__ = ("_chosen", "_since_ns", "_specs", "_workload_index")

    def __init__(self) -> None:
        self._workload_index: WorkloadIndex | None = None
        self._chosen: dict[str, Channel] = {}
        self._since_ns: dict[str, int] = {}
        self._specs: dict[Channel, Specs] = {}

    def update(
        self, workload_index: WorkloadIndex, loops: Mapping[Channel, ChannelLoops], now_ns: int
    ) -> Mapping[Channel, Specs]:
        """Return the indicators of every channel by service; *loops* is what they say now."""
        changed = workload_index is not self._workload_index
        self._workload_index = workload_index
        if changed:
            self._chosen = {
                name: self._chosen.get(name) or _default(service)
                for name, service in workload_index.services.items()
                if any(_is_own(spec) for spec in service.profile.indicators)
            }
        for name, channel in self._chosen.items():
            hurting = (loops[channel].deviation_of(name, IndicatorName.SERVICE) or 0.0) > 0
            if not hurting or now_ns - self._since_ns.get(name, -_RECHOOSE_NS) < _RECHOOSE_NS:
                continue
            self._since_ns[name] = now_ns
            best = _most_deviating(workload_index.services[name], loops)
            changed = changed or best is not channel
            self._chosen[name] = best
        if changed:
            self._specs = {channel: self._of(channel, workload_index) for channel in Channel}
        return self._specs

    def _of(self, channel: Channel, workload_index: WorkloadIndex) -> Specs:
        # Hundreds of services share a few profiles.
        made: dict[tuple[str, Channel | None], tuple[IndicatorSpec, ...]] = {}
        found = {}
        for name, service in workload_index.services.items():
            own = self._chosen.get(name)
            key = (service.profile.name, own)
            if key not in made:
                made[key] = _specs_of(service.profile, channel, own)
            if specs := made[key]:
                found[name] = specs
        return found


def _specs_of(profile: Profile, channel: Channel, own: Channel | None) -> tuple[IndicatorSpec, ...]:
    """Return the indicators on *channel*; a service's own latency is on *own*."""
    if channel not in profile.channels:
        return ()
    return tuple(
        spec for spec in profile.indicators if (own if _is_own(spec) else spec.channel) is channel
    )


def _default(service: Service) -> Channel:
    channels = service.profile.channels
    return Channel.CPU if Channel.CPU in channels else channels[0]


def _is_own(spec: IndicatorSpec) -> bool:
    return spec.name is IndicatorName.SERVICE


def _most_deviating(service: Service, loops: Mapping[Channel, ChannelLoops]) -> Channel:
    best, worst = _default(service), _SAYS_NOTHING
    for channel, each in loops.items():
        deviation = each.worst_deviation(service.name, without=IndicatorName.SERVICE)
        if channel in service.profile.channels and deviation is not None and deviation > worst:
            best, worst = channel, deviation
    return best
