# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The writes of a plan: what the grants, the rungs and the policies ask for, in one order.

Two policies of two states stand beside the channels: sched-idle and core scheduling. A knob that is
held on a target on which the agent may not hold it any more is restored.
"""

from collections.abc import Mapping

from controller.core.channels.channels import Channels
from controller.core.channels.ladder import TickContext
from controller.core.decision import Action, Verdict
from controller.core.explain import reason_of
from controller.core.knob_values import cpus_of, quota_text, write_order
from controller.core.knobs.grants import GrantActions
from controller.core.model import (
    SERVICE_KNOBS,
    CgroupId,
    Channel,
    Knob,
    Target,
    TargetKind,
)
from controller.core.settings import SafeState, Settings
from controller.core.workload_index import WorkloadIndex
from controller.core.writes.core_scheduling import CookieGate
from controller.core.writes.sched_idle import SchedIdlePolicy
from controller.core.writes.service_knobs import service_actions

__all__ = ("PlanActions",)


class PlanActions:
    """Makes the actions of each plan; keeps the state of sched-idle and of the cookies."""

    __slots__ = ("_cookies", "_idle", "_quotas", "_settings")

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._idle = SchedIdlePolicy()
        self._cookies = CookieGate(settings.core)
        self._quotas = GrantActions(Knob.CPU_QUOTA, cpus_of, quota_text)

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
        quotas = channels.explain(
            self._quotas.actions(
                grants,
                channels.cpu.rung.floor_each,
                index.quota_targets,
                knobs,
                reason_of(channels.quota_loops),
                context.resync,
                now_ns,
            )
        )
        restore = self._settings.safe_state is SafeState.RESTORE
        actions = self._idle.actions(channels.safe, restore, context)
        cache = channels.loops[Channel.CACHE]
        actions += self._cookies.actions(cache, overlap, self._idle.on, context)
        if context.resync:
            quotas.extend(_restore_ineligible(context))
            actions.extend(service_actions(index, knobs, now_ns))
        actions.extend(sorted(quotas, key=write_order))
        for channel in channels.ladders:
            actions.extend(channel.ladder.actions(context, reason_of(channel.loops)))
        return tuple(actions)

    def build_released(self, context: TickContext) -> tuple[Action, ...]:
        """Return the writes of a tick in which everything is paused: only restores.

        Nothing else may act: the safe state moves knobs too.
        """
        return tuple(_restore_ineligible(context, released=True)) if context.resync else ()


def _restore_ineligible(context: TickContext, *, released: bool = False) -> list[Action]:
    """Restore the knobs that are held on targets on which the agent may not hold them now.

    *released*: it may hold none.
    """
    index, knobs = context.workload_index, context.knobs
    actions = []
    for target, knob in knobs.held():
        if released or not _is_eligible(target, knob, index):
            is_paused = released or (target.scope, target.id) in index.paused
            text = "paused" if is_paused else "no longer a best-effort workload"
            action = knobs.restore(target.scope, target.id, knob, text, context.now_ns)
            if action is not None:
                actions.append(action)
    return actions


def _is_eligible(target: Target, knob: Knob, index: WorkloadIndex) -> bool:
    """Whether the agent may hold *knob* on *target*."""
    if target.kind is not TargetKind.CGROUP:
        return True
    cgroup = CgroupId(target.scope, target.id)
    if knob is Knob.SCHED_IDLE:
        return cgroup in index.idle_targets
    if knob is Knob.MEMORY_MAX:
        return cgroup in index.memory_targets
    if knob is Knob.CPU_QUOTA and cgroup in index.quota_targets:
        return True
    return cgroup in index.best_effort or (knob in SERVICE_KNOBS and cgroup in index.sensitive)
