# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Events at the begin and the end of a squeeze of best-effort work for a service."""

from collections.abc import Callable
from dataclasses import dataclass

from controller.core.control.explain import describe_loop, selected
from controller.core.control.suffering import depth
from controller.core.decision import ChannelState, Demand, LoopReport, Plan
from controller.core.model import CgroupId, Channel, Mode
from controller.core.units import NS_PER_SEC, format_duration
from controller.kube.events import Events, Regarding
from controller.kube.reasons import Reason
from controller.workloads.pods.pod import Pod

__all__ = ("SqueezeEvents",)

# Demands below this value have no noticeable effect on a knob.
_NOTICEABLE = 0.05
# A squeeze ends after this time without demand; released knobs return step by step.
_OVER_NS = 30 * NS_PER_SEC


@dataclass(slots=True)
class _Squeeze:
    """A current squeeze, with the numbers for the Event at its end."""

    began_ns: int
    last_ns: int
    peak_demand: float
    peak_deviation: float


class SqueezeEvents:
    """Emits Events from the demands of the channels; for the control thread.

    :param pod_of: returns the pod of a cgroup, ``None`` if it is not the cgroup of a known pod.
    """

    def __init__(self, events: Events, node: str, pod_of: Callable[[CgroupId], Pod | None]) -> None:
        self._events = events
        self._node = node
        self._pod_of = pod_of
        # Keyed by service too: if two services suffer alternately, there is one squeeze for each.
        self._squeezes: dict[tuple[Channel, str], _Squeeze] = {}

    def update(self, plan: Plan, mode: Mode) -> None:
        """Update with the demands of *plan*, and emit Events."""
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
        for demand in plan.demands:
            if demand.state is ChannelState.SQUEEZE and demand.applied >= _NOTICEABLE:
                self._update_service(demand, plan, mode)

    def _update_service(self, demand: Demand, plan: Plan, mode: Mode) -> None:
        if demand.service is None:
            return
        loop = selected(plan, demand)
        squeeze = self._squeezes.get((demand.channel, demand.service))
        if squeeze is None:
            squeeze = _Squeeze(plan.time_ns, plan.time_ns, 0.0, 0.0)
            self._squeezes[demand.channel, demand.service] = squeeze
            self._emit(demand.service, plan, Reason.SQUEEZED, _explain(demand, loop, mode))
        deviation = (depth(loop) if loop else None) or 0.0
        squeeze.last_ns = plan.time_ns
        squeeze.peak_demand = max(squeeze.peak_demand, demand.applied)
        squeeze.peak_deviation = max(squeeze.peak_deviation, deviation)

    def _emit(self, service: str, plan: Plan, reason: Reason, note: str) -> None:
        self._events.emit(self._regarding(service, plan), reason, note)

    def _regarding(self, service: str, plan: Plan) -> Regarding:
        # The pod with the worst indicator of the service; the node if no pod is known.
        for indicator in plan.indicators:
            if indicator.service == service and indicator.worst is not None:
                pod = self._pod_of(indicator.worst)
                if pod is not None:
                    return Regarding("Pod", pod.namespace, pod.name, pod.uid)
        return Regarding("Node", "", self._node, self._node)


def _explain(demand: Demand, loop: LoopReport | None, mode: Mode) -> str:
    verb = "is squeezed" if mode is Mode.ENFORCE else "would be squeezed (the agent only observes)"
    cause = demand.service if loop is None else describe_loop(loop)
    return f"{demand.channel}: best-effort work {verb} because {cause}; demand {demand.applied:.0%}"
