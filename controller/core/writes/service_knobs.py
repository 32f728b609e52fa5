# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The knobs of latency-sensitive services themselves: the CFS burst, ``cpu_burst`` of a profile.

All other knobs of the control core belong to best-effort workloads.
"""

from controller.core.decision import Action
from controller.core.knob_values import Quota, format_quota, parse_quota
from controller.core.knobs.knob_state import KnobState
from controller.core.model import Knob, KnobValue
from controller.core.workload_index import Service, WorkloadIndex

__all__ = ("service_actions",)


def service_actions(workload_index: WorkloadIndex, knobs: KnobState, now_ns: int) -> list[Action]:
    """Return the writes that let services accumulate quota that they did not use.

    Only a service that already has a quota gets a burst; its quota and period stay as they are. A
    burst is at most the quota (kernel/sched/core.c, tg_set_cfs_bandwidth). Where no burst applies,
    the original cpu.quota is restored, also from a quota that was set while the workload was still
    best-effort.
    """
    actions = []
    for service in workload_index.services.values():
        for scope, id_ in service.cgroups:
            key = (scope, id_, Knob.CPU_QUOTA)
            original = knobs.original(*key)
            quota = None if original is None else parse_quota(original)
            if quota is None:
                continue
            burst_us = 0 if service.paused else service.profile.cpu_burst_us
            if quota.quota_us is None or burst_us <= quota.burst_us:
                text = _restore_reason(service, quota, knobs.value(*key))
                action = knobs.restore(*key, text, now_ns)
            else:
                wanted = Quota(quota.quota_us, quota.period_us, min(burst_us, quota.quota_us))
                text = f"profile {service.profile.name}: a burst of {wanted.burst_us} us"
                action = knobs.request(*key, format_quota(wanted), text, now_ns)
            if action is not None:
                actions.append(action)
    return actions


def _restore_reason(service: Service, original: Quota, current: KnobValue | None) -> str:
    now = original if current is None else parse_quota(current)
    if service.paused:
        return f"restore cpu.quota: {service.name} is paused"
    if (now.quota_us, now.period_us) == (original.quota_us, original.period_us):
        return f"restore cpu.quota: profile {service.profile.name} asks for no larger burst"
    return f"restore cpu.quota: {service.name} is latency-sensitive now"
