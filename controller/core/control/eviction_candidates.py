# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the channels have against best-effort: the cases and the candidates of an eviction."""

from collections.abc import Iterable

from controller.core.control.channel_loops import Loops
from controller.core.control.cpu_channel import CpuChannel
from controller.core.control.eviction_policy import Candidate, Case
from controller.core.control.ladder import Scene
from controller.core.control.ladder_channel import LadderChannel
from controller.core.model import Channel

__all__ = ("candidates_of", "cases_of")

# Closer to 1 than this, a demand has every knob of its channel at its stop.
_STOP = 0.99


def cases_of(cpu: CpuChannel, ladders: Iterable[LadderChannel], scene: Scene) -> list[Case]:
    """Return one case for every channel that protects somebody."""
    cases = []
    for loops in (cpu.loops, *(each.loops for each in ladders)):
        loop = loops.selected
        service = None if loop is None else scene.roster.services.get(loop.service)
        if loop is None or service is None:
            continue
        at_stop = loops.demand.applied >= _STOP
        cases.append(
            Case(
                channel=loop.channel,
                service=service.name,
                at_stop=at_stop,
                deviation=loop.filtered_deviation,
                # Before the stop nobody asks, and it looks at every workload.
                be_share=_share(loops, service.name, scene) if at_stop else None,
                be_share_min=service.profile.be_share_min,
                enabled=service.profile.evict_enabled,
                after_ns=service.profile.evict_after_ns,
            )
        )
    return cases


def candidates_of(case: Case, scene: Scene) -> list[Candidate]:
    """Return who may be evicted for *case*, with what he is to blame for."""
    # Of all best-effort work: those who may not go have their part in it as well.
    everybody = scene.roster.best_effort
    if case.channel is Channel.CPU:
        culprits = scene.senses.blame.culprits
        blame = {cgroup: culprits.get(cgroup, 0.0) for cgroup in everybody}
    else:
        wants = scene.usage.of(case.channel).wants
        blame = {cgroup: wants.get(cgroup, 0.0) for cgroup in everybody}
    share = (case.be_share or 0.0) / (sum(blame.values()) or 1.0)
    return [
        Candidate(
            cgroup=cgroup,
            name=workload.name,
            blame=blame[cgroup],
            share=share * blame[cgroup],
            priority=workload.priority,
            size=scene.senses.use.get(cgroup, 0.0),
        )
        for cgroup, workload in everybody.items()
        if workload.evictable
    ]


def _share(loops: Loops, service: str, scene: Scene) -> float | None:
    if loops.demand.channel is Channel.CPU:
        return scene.senses.blame.share(service)
    return scene.usage.share(loops.demand.channel, scene.senses, scene.roster)
