# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Events at the begin and the end of a squeeze for a service, and why a service is slow."""

from collections.abc import Callable
from dataclasses import dataclass

from controller.core.decision import SLOW, Demand, LoopReport, Plan, SlowBecause, describe_slow
from controller.core.eviction.causes import depth
from controller.core.in_force import InForce
from controller.core.model import CgroupId, Channel, Mode
from controller.core.units import NS_PER_SEC, format_duration
from controller.kube.events import Events, Regarding
from controller.kube.reasons import Reason
from controller.page.words import describe_loop, selected
from controller.workloads.pods.pod import Pod

__all__ = ("SqueezeEvents",)

# A squeeze begins with a demand of this at least: below, a knob has no noticeable effect.
_NOTICEABLE = 0.05
# It ends after this time without a knob in force.
_OVER_NS = 30 * NS_PER_SEC


@dataclass(slots=True)
class _Squeeze:
    """A current squeeze, with the numbers for the Event at its end."""

    began_ns: int
    last_ns: int
    peak_demand: float
    peak_deviation: float


class SqueezeEvents:
    """Emits Events from the record of what is in force; for the control thread.

    :param pod_of: returns the pod of a cgroup, ``None`` if it is not the cgroup of a known pod.
    """

    def __init__(self, events: Events, node: str, pod_of: Callable[[CgroupId], Pod | None]) -> None:
        self._events = events
        self._node = node
        self._pod_of = pod_of
        # Keyed by service too: if two services suffer alternately, there is one squeeze for each.
        self._squeezes: dict[tuple[Channel, str], _Squeeze] = {}

    def update(self, plan: Plan, in_force: InForce, mode: Mode) -> None:
        """Update with what is in force after *plan*, and emit Events."""
        for (channel, service), squeeze in [*self._squeezes.items()]:
            if plan.time_ns - squeeze.last_ns >= _OVER_NS:
                del self._squeezes[channel, service]
                duration = format_duration(squeeze.last_ns - squeeze.began_ns)
                note = (
                    f"{channel}: best-effort work is no longer squeezed for {service}, after "
                    f"{duration} (demand up to {squeeze.peak_demand:.0%}, "
                    f"deviation up to {squeeze.peak_deviation:.2f})"
                )
                self._emit(service, plan, Reason.RELEASED, note)
        for verdict in plan.verdicts:
            if verdict.text.startswith(SLOW):
                self._emit_slow(verdict.subject, plan)
        demands = {demand.channel: demand for demand in plan.demands}
        held = {(each.channel, each.service): None for each in in_force.limits}
        for asked_by, served in held:
            if asked_by in demands and served is not None:
                self._update_service(demands[asked_by], served, plan, mode)

    def _update_service(self, demand: Demand, service: str, plan: Plan, mode: Mode) -> None:
        loop = selected(plan, demand.channel) if demand.service == service else None
        squeeze = self._squeezes.get((demand.channel, service))
        if squeeze is None:
            if demand.applied < _NOTICEABLE:
                return
            squeeze = _Squeeze(plan.time_ns, plan.time_ns, 0.0, 0.0)
            self._squeezes[demand.channel, service] = squeeze
            self._emit(service, plan, Reason.SQUEEZED, _explain(demand, service, loop, mode))
        deviation = (depth(loop) if loop else None) or 0.0
        squeeze.last_ns = plan.time_ns
        squeeze.peak_demand = max(squeeze.peak_demand, demand.applied)
        squeeze.peak_deviation = max(squeeze.peak_deviation, deviation)

    def _emit_slow(self, service: str, plan: Plan) -> None:
        """Emit the verdict without names: readers of this Event may not know of other workloads."""
        for each in plan.slow:
            if each.service == service and each.because is not SlowBecause.BEST_EFFORT:
                note = describe_slow(each.because, "", each.evidence)
                self._emit(service, plan, Reason.SLOW, note, each.because)

    def _emit(self, service: str, plan: Plan, reason: Reason, note: str, topic: str = "") -> None:
        self._events.emit(self._regarding(service, plan), reason, note, topic=topic)

    def _regarding(self, service: str, plan: Plan) -> Regarding:
        # The pod with the worst indicator of the service; the node if no pod is known.
        for indicator in plan.indicators:
            if indicator.service == service and indicator.worst is not None:
                pod = self._pod_of(indicator.worst)
                if pod is not None:
                    return Regarding("Pod", pod.namespace, pod.name, pod.uid)
        return Regarding("Node", "", self._node, self._node)


def _explain(demand: Demand, service: str, loop: LoopReport | None, mode: Mode) -> str:
    verb = "is squeezed" if mode is Mode.ENFORCE else "would be squeezed (the agent only observes)"
    cause = service if loop is None else describe_loop(loop)
    return f"{demand.channel}: best-effort work {verb} because {cause}; demand {demand.applied:.0%}"
