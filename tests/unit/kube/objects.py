# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What several tests use: a node with a foreign taint, two pods, a plan, an eviction, a clock."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from controller.core.decision import (
    ChannelState,
    Eviction,
    Indicator,
    IndicatorStatus,
    Plan,
)
from controller.core.model import CgroupId, Channel, EvictionAnswer, IndicatorName
from controller.kube.client.api import Api
from controller.kube.events import Regarding
from controller.kube.overload_taint import TAINT_KEY, OverloadTaint
from controller.kube.pod_eviction import EvictionClient, Victim
from controller.workloads.pods.pod import Pod
from tests.support.kube.api_stand_in import ApiStandIn
from tests.support.reports import DEMAND, LOOP

__all__ = (
    "EVICTION",
    "FOREIGN",
    "HOG_OBJECT",
    "NODE",
    "OURS",
    "PODS",
    "SERVICE",
    "VICTIM",
    "Clock",
    "Sent",
    "evict",
    "plan",
    "taints_and_end",
)

NODE = "/api/v1/nodes/n1"
FOREIGN = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026"}
OURS = {"key": TAINT_KEY, "effect": "PreferNoSchedule"}
_SECOND_NS = 1_000_000_000
_WEB, _HOG = CgroupId("cpu", 1), CgroupId("cpu", 2)
PODS = {
    _WEB: Pod(uid="u-web", namespace="shop", name="web-0", qos_class="Burstable", priority=0),
    _HOG: Pod(uid="u-hog", namespace="jobs", name="hog", qos_class="BestEffort", priority=0),
}
HOG_OBJECT = Regarding("Pod", "jobs", "hog", "u-hog")
SERVICE = "shop/web@default"
EVICTION = Eviction(
    cgroup=_HOG,
    name="jobs/hog",
    channel=Channel.CPU,
    service=SERVICE,
    blame=0.83,
    reason=f"{SERVICE} suffers on cpu",
)
VICTIM = Victim(
    Eviction(
        cgroup=CgroupId("cpu", 7),
        name="jobs/hog",
        channel=Channel.CPU,
        service="shop/web@default",
        blame=0.5,
        reason="",
    ),
    namespace="jobs",
    name="hog",
    uid="u-1",
    grace_s=30,
    until_ns=100,
)


Sent = Callable[[], list[dict[str, Any]]]


class Clock:
    """Seconds, advanced by the test; used as the monotonic and as the wall clock."""

    def __init__(self) -> None:
        self.now_s = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now_s


def taints_and_end(server: ApiStandIn) -> tuple[list[Any], str | None]:
    """Return the taints of the node, and the annotation with the end of the overload taint."""
    found = server.objects[NODE]
    end = found["metadata"].get("annotations", {}).get(TAINT_KEY)
    return found["spec"].get("taints", []), end


def evict(api: Api, taint: OverloadTaint) -> EvictionAnswer:
    """Request the eviction of ``VICTIM`` in time and return the answer."""
    return EvictionClient(api, taint, lambda: 99).evict(VICTIM)


def plan(second: float, applied: float = 0.0, eviction: Eviction | None = None) -> Plan:
    """Return a plan in which ``SERVICE`` suffers on cpu, with the demand *applied*."""
    state = ChannelState.SQUEEZE if applied else ChannelState.FREE
    service = SERVICE if applied else None
    loop = replace(
        LOOP,
        service=SERVICE,
        value=12e6,
        sweet_point=3e6,
        deviation=2.0,
        filtered_deviation=1.5,
        demand=applied,
    )
    indicator = Indicator(
        service=SERVICE,
        name=IndicatorName.RUNQ_P99,
        value=12e6,
        samples=9,
        status=IndicatorStatus.FRESH,
        worst=_WEB,
    )
    return Plan(
        time_ns=round(second * _SECOND_NS),
        demands=(replace(DEMAND, wanted=applied, applied=applied, state=state, service=service),),
        loops=(loop,),
        indicators=(indicator,),
        eviction=eviction,
    )
