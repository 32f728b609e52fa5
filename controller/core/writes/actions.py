# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The writes of a plan: what the grants, the rungs and the policies ask for, in one order.

Two policies of two states stand beside the channels: sched-idle and core scheduling. A knob that is
held on a target on which the agent may not hold it any more is restored. Services themselves have
the CFS burst, ``cpu_burst`` of a profile, and the knobs of a class for disks (``io_classes``); all
others belong to best-effort workloads.
"""

from collections.abc import Iterator, Mapping, Set
from functools import partial

from controller.core.channels.channels import Channels
from controller.core.channels.ladder import TickContext
from controller.core.decision import Action, Verdict
from controller.core.explain import reason_of
from controller.core.knob_comparison import is_stricter
from controller.core.knob_values import (
    Quota,
    cpus_of,
    format_cpuset,
    format_quota,
    parse_cpuset,
    parse_quota,
    quota_for,
)
from controller.core.knobs.grants import GrantValues
from controller.core.knobs.knob_state import KnobState
from controller.core.model import (
    CLASS_KNOBS,
    SERVICE_KNOBS,
    CgroupId,
    Channel,
    Knob,
    KnobValue,
    Target,
    TargetKind,
)
from controller.core.settings import SafeState, Settings
from controller.core.workload_index import Service, WorkloadIndex
from controller.core.writes.io_classes import class_actions
from controller.core.writes.switches import CookieGate, SchedIdlePolicy

__all__ = ("PlanActions", "isolation_actions")


class PlanActions:
    """Makes the actions of each plan; keeps the state of sched-idle and of the cookies."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._idle = SchedIdlePolicy()
        self._cookies = CookieGate(settings.core)
        self._quotas = GrantValues(
            Knob.CPU_QUOTA, cpus_of, lambda cpus, _: format_quota(quota_for(cpus))
        )

    def reconfigure(self, settings: Settings) -> None:
        """Take new settings, which decide about sched-idle at once."""
        self._settings = settings
        self._cookies.settings = settings.core
        self._idle.end_hold()

    def end_hold(self) -> None:
        """Let sched-idle end at once if no service wants it any more."""
        self._idle.end_hold()

    def forget_cookies(self) -> None:
        """Forget what was decided about cookies, so that they are taken back without a wait."""
        self._cookies = CookieGate(self._settings.core)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The explanation of a decision about cookies that changed in this tick, if it did."""
        return () if self._cookies.verdict is None else (self._cookies.verdict,)

    def build(
        self,
        channels: Channels,
        grants: Mapping[CgroupId, float],
        overlap: float | None,
        context: TickContext,
    ) -> tuple[Action, ...]:
        """Return the writes of this tick, for *grants* in CPUs and the rungs of *channels*.

        *overlap* is that of ``CookieGate.step``.
        """
        index, knobs, now_ns = context.workload_index, context.knobs, context.now_ns
        quotas: list[Action] = []
        floor = channels.cpu.rung.floor_each
        changes = self._quotas.changes(grants, floor, index.quota_targets, knobs, context.resync)
        if changes:
            reason = reason_of(channels.quota_loops)
            quotas = channels.explain(knobs.limit(Knob.CPU_QUOTA, changes, reason, now_ns))
        restore = self._settings.safe_state is SafeState.RESTORE
        actions = self._idle.actions(channels.safe, restore, context)
        cache = channels.loops[Channel.CACHE]
        actions += self._cookies.actions(cache, overlap, self._idle.on, context)
        if context.resync:
            moved = {each.knob for channel in channels.ladders for each in channel.ladder.rungs}
            classes = self._settings.io_classes
            quotas.extend(filter(None, _restore_ineligible(context, moved)))
            actions.extend(filter(None, _service_actions(index, knobs, now_ns)))
            actions.extend(filter(None, class_actions(index, classes, knobs, now_ns)))
        actions.extend(sorted(quotas, key=_write_order))
        for channel in channels.ladders:
            actions.extend(channel.ladder.actions(context, partial(reason_of, channel.loops)))
        return tuple(actions)

    def build_released(self, context: TickContext) -> tuple[Action, ...]:
        """Return the writes of a tick in which everything is paused: only restores.

        Nothing else may act: the safe state moves knobs too.
        """
        moves = _restore_ineligible(context, released=True) if context.resync else ()
        return tuple(filter(None, moves))


def _write_order(action: Action) -> tuple[bool, int]:
    """Return the sort key by which quotas of children never exceed those of their parents.

    cgroup v1 refuses such a value. Quotas are lowered from the leaves upwards first, then raised
    from the top downwards. The order of other knobs does not matter.
    """
    depth = action.target.path.count("/")
    is_quota = action.knob is Knob.CPU_QUOTA
    lowers = is_quota and is_stricter(action.knob, action.value, action.previous)
    return (not lowers, -depth if lowers else depth)


def _restore_ineligible(
    context: TickContext, moved: Set[Knob] = frozenset(), *, released: bool = False
) -> Iterator[Action | None]:
    """Restore the knobs that are held on targets on which the agent may not hold them now.

    *moved* are the knobs of rungs. *released*: it may hold none.
    """
    index, knobs = context.workload_index, context.knobs
    for target, knob in knobs.held():
        if released or not _is_eligible(target, knob, index, moved):
            text = "paused" if released else _why_ineligible(target.place, index)
            yield knobs.restore(*target.place, knob, text, context.now_ns)


def _is_eligible(target: Target, knob: Knob, index: WorkloadIndex, moved: Set[Knob]) -> bool:
    """Whether the agent may hold *knob* on *target*."""
    if target.kind is not TargetKind.CGROUP:
        return True
    cgroup = target.place
    if knob is Knob.SCHED_IDLE:
        return cgroup in index.idle_targets
    if knob is Knob.MEMORY_MAX:
        return cgroup in index.memory_targets or cgroup in index.memory_placed
    if knob is Knob.CPUSET:
        return cgroup in index.cpuset_targets
    if knob is Knob.CPU_QUOTA and cgroup in index.quota_targets:
        return True
    if knob in CLASS_KNOBS and (cgroup in index.io_classes or knob not in moved):
        return cgroup in index.io_classes
    return cgroup in index.best_effort or (knob in SERVICE_KNOBS and cgroup in index.sensitive)


def _why_ineligible(cgroup: CgroupId, index: WorkloadIndex) -> str:
    if cgroup in index.paused or index.sensitive.get(cgroup) in index.paused_services:
        return "paused"
    return "no longer a best-effort workload, and of no class for disks"


def _service_actions(
    workload_index: WorkloadIndex, knobs: KnobState, now_ns: int
) -> Iterator[Action | None]:
    """Return the writes that let services accumulate quota that they did not use.

    Only a service that already has a quota gets a burst; its quota and period stay as they are. A
    burst is at most the quota (kernel/sched/core.c, tg_set_cfs_bandwidth). Where no burst applies,
    the original cpu.quota is restored, also from a quota that was set while the workload was still
    best-effort.
    """
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
                yield knobs.restore(*key, text, now_ns)
            else:
                wanted = Quota(quota.quota_us, quota.period_us, min(burst_us, quota.quota_us))
                text = f"profile {service.profile.name}: a burst of {wanted.burst_us} us"
                yield knobs.request(*key, format_quota(wanted), text, now_ns)


def _restore_reason(service: Service, original: Quota, current: KnobValue | None) -> str:
    now = original if current is None else parse_quota(current)
    if service.paused:
        return f"restore cpu.quota: {service.name} is paused"
    if (now.quota_us, now.period_us) == (original.quota_us, original.period_us):
        return f"restore cpu.quota: profile {service.profile.name} asks for no larger burst"
    return f"restore cpu.quota: {service.name} is latency-sensitive now"


def isolation_actions(
    index: WorkloadIndex, shared_cpus: str, knobs: KnobState, now_ns: int
) -> list[Action]:
    """Return the writes that keep best-effort work on *shared_cpus*; empty: everything goes back.

    kubelet moves containers off the other CPUs only every 10 s, and only those that it knows. No
    loop moves this knob: it follows ``Snapshot.shared_cpus``.

    A set of another program is narrowed, never widened. Where it has none of *shared_cpus* it
    stays, because a set may not be empty.
    """
    if not shared_cpus:
        gone = [(each, None) for each in knobs.touched(Knob.CPUSET)]
        return knobs.limit(Knob.CPUSET, gone, "no CPU belongs to one pod alone", now_ns)
    values = (
        (cgroup, _within(shared_cpus, original))
        for cgroup in sorted(index.cpuset_targets)
        if (original := knobs.original(*cgroup, Knob.CPUSET)) is not None
    )
    reason = f"other CPUs than {shared_cpus} belong to one pod alone"
    return knobs.limit(Knob.CPUSET, values, reason, now_ns)


def _within(shared_cpus: str, original: KnobValue) -> KnobValue | None:
    theirs, ours = parse_cpuset(original), parse_cpuset(KnobValue(shared_cpus)) or frozenset()
    both = ours if theirs is None else ours & theirs
    return format_cpuset(both) if both else None
