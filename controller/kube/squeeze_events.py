# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Tells by Events when best-effort work is squeezed for a service, and when that is over."""

from collections.abc import Callable
from dataclasses import dataclass

from controller.core.control.explain import describe_loop, selected
from controller.core.decision import ChannelState, Demand, LoopReport, Plan
from controller.core.model import CgroupId, Channel, Mode
from controller.core.units import NS_PER_SEC, format_duration
from controller.kube.events import Events, Regarding
from controller.workloads.pods.pod import Pod

__all__ = ("SqueezeEvents",)

# A demand below this moves no knob that anybody would notice.
_NOTICEABLE = 0.05
# Without demand for this long it is over; released knobs come back step by step.
_OVER_NS = 30 * NS_PER_SEC


@dataclass(slots=True)
class _Squeeze:
    """One that goes on, and the numbers to tell of it at its end."""

    began_ns: int
    last_ns: int
    peak: float
    worst: float


class SqueezeEvents:
    """Follows the channels' demands; for the control thread."""

    def __init__(self, events: Events, node: str, pod_of: Callable[[CgroupId], Pod | None]) -> None:
        self._events = events
        self._node = node
        self._pod_of = pod_of
        # By service as well: where two suffer in turn it goes on for both, and is told once.
        self._going: dict[tuple[Channel, str], _Squeeze] = {}

    def update(self, plan: Plan, mode: Mode) -> None:
        """Take note of *plan*."""
        for (channel, service), going in [*self._going.items()]:
            if plan.time_ns - going.last_ns >= _OVER_NS:
                del self._going[channel, service]
                took = format_duration(going.last_ns - going.began_ns)
                note = (
                    f"{channel}: best-effort work is squeezed no more for {service}, after {took} "
                    f"(demand up to {going.peak:.0%}, deviation up to {going.worst:.2f})"
                )
                self._emit(service, plan, "BestEffortReleased", note)
        for demand in plan.demands:
            if demand.state is ChannelState.SQUEEZE and demand.applied >= _NOTICEABLE:
                self._update_service(demand, plan, mode)

    def _update_service(self, demand: Demand, plan: Plan, mode: Mode) -> None:
        if demand.service is None:
            return
        loop = selected(plan, demand)
        going = self._going.get((demand.channel, demand.service))
        if going is None:
            going = _Squeeze(plan.time_ns, plan.time_ns, 0.0, 0.0)
            self._going[demand.channel, demand.service] = going
            self._emit(demand.service, plan, "BestEffortSqueezed", _why(demand, loop, mode))
        going.last_ns = plan.time_ns
        going.peak = max(going.peak, demand.applied)
        going.worst = max(going.worst, (loop.filtered_deviation if loop else None) or 0.0)

    def _emit(self, service: str, plan: Plan, reason: str, note: str) -> None:
        self._events.emit(self._regarding(service, plan), reason, note)

    def _regarding(self, service: str, plan: Plan) -> Regarding:
        # The service's worst pod here; where no pod is known, the node.
        for indicator in plan.indicators:
            if indicator.service == service and indicator.worst is not None:
                pod = self._pod_of(indicator.worst)
                if pod is not None:
                    return Regarding("Pod", pod.namespace, pod.name, pod.uid)
        return Regarding("Node", "", self._node, self._node)


def _why(demand: Demand, loop: LoopReport | None, mode: Mode) -> str:
    what = "is squeezed" if mode is Mode.ENFORCE else "would be squeezed (the agent only observes)"
    hurts = demand.service if loop is None else describe_loop(loop)
    return f"{demand.channel}: best-effort work {what} because {hurts}; demand {demand.applied:.0%}"
