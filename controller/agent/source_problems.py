# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the sources on this host: probes, configuration, clock."""

from collections.abc import Iterator, Mapping
import time

from controller.agent.sampler import Sampler
from controller.core.decision import ChannelState, IndicatorStatus, Plan
from controller.core.model import Channel, QosClass, Workload
from controller.core.settings import Settings
from controller.core.units import NS_PER_SEC
from controller.host.probe_support import find_unsupported
from controller.host.sources import Source, SourceProblem, SourceState
from controller.kube.source_problems import source_problems
from controller.kube.state import ClusterState

__all__ = ("ClockWatch", "SourceProblems", "config_problems", "needs_traffic", "probe_problems")

_FIRST_LINE = 300
_MOST_NAMED = 3
_FIGURES = {
    IndicatorStatus.LOST: "no figure of {} any more, though it works as before",
    IndicatorStatus.IMPLAUSIBLE: (
        "the figure of {} jumped, though it does the same work in the same time"
    ),
}
_HELD = "its squeeze is held; check its source, see service_level in /statusz"


def probe_problems(
    problems: Mapping[str, str], unsupported: str, plan: Plan, *, traffic: bool
) -> Iterator[SourceProblem]:
    """Yield the problems of probes.

    :param problems: why probes are off, by their names.
    :param unsupported: why the sched probe cannot work on this kernel, empty if it may.
    :param traffic: whether anything needs the net probe.
    """
    for name, reason in sorted(problems.items()):
        if name == "sched" and unsupported:
            # A node that is never Ready counts as unavailable in every rollout, and stops it for
            # good; no restart and no other version helps here.
            text = f"{unsupported}; nothing is measured or limited on this node"
            yield SourceProblem(Source.PROBES, SourceState.DEGRADED, text)
        elif name != "net" or traffic:
            # Nothing can be controlled without the sched probe; the others are optional.
            state = SourceState.UNSEEN if name == "sched" else SourceState.DEGRADED
            text = f"{name} is off: {reason}; 'sweetpoint doctor' says what it needs"
            yield SourceProblem(Source.PROBES, state, text)
    silent = [each.channel for each in plan.demands if each.state is ChannelState.SAFE]
    if silent and "sched" not in problems:
        text = (
            f"no new data on {', '.join(sorted(silent))}: safe_state of the configuration holds; "
            "the stale indicators in /statusz name the probe or the service"
        )
        yield SourceProblem(Source.PROBES, SourceState.DEGRADED, text)
    for status, what in _FIGURES.items():
        services = sorted({each.service for each in plan.loops if each.status is status})
        if services:
            text = f"{what.format(', '.join(services[:_MOST_NAMED]))}; {_HELD}"
            yield SourceProblem(Source.PROBES, SourceState.DEGRADED, text)


def needs_traffic(settings: Settings, workloads: tuple[Workload, ...]) -> bool:
    """Return whether a service of *workloads* has a sweet point on the network channel."""
    used = {each.profile for each in workloads if each.qos is QosClass.LS}
    return any(
        indicator.channel is Channel.NETWORK
        for name in used
        if name in settings.profiles
        for indicator in settings.profiles[name].indicators
    )


def config_problems(problem: str) -> Iterator[SourceProblem]:
    """Yield that the configuration was refused, if *problem* says why."""
    if problem:
        lines = problem.splitlines()
        more = f" (and {len(lines) - 1} more lines in the log)" if len(lines) > 1 else ""
        text = (
            f"the configuration is refused, the last good one is in force: "
            f"{lines[0][:_FIRST_LINE]}{more}; correct it and reload"
        )
        yield SourceProblem(Source.PROFILES, SourceState.DEGRADED, text)


# A tick counts this much, so the average is that of about the last 20 s with ticks of 200 ms.
_TICK_WEIGHT = 0.01
_LATE, _IN_TIME = 0.5, 0.25
# More than time servers correct at once by slewing, and less than a wrong time zone.
_JUMP_NS = 10 * NS_PER_SEC
_REMEMBER_NS = 600 * NS_PER_SEC


class ClockWatch:
    """Finds out whether ticks come in time and the wall clock runs steadily."""

    def __init__(self) -> None:
        self._late = 0.0  # part of the last ticks
        self._is_late = False
        self._offset_ns: int | None = None
        self._jump = ""
        self._jump_until_ns = 0

    def update(self, *, late: bool) -> None:
        """Take a tick; *late*: it took longer than its period, or began a period late."""
        self._late += (late - self._late) * _TICK_WEIGHT
        self._is_late = self._late > (_IN_TIME if self._is_late else _LATE)

    def compare(self, wall_ns: int, boot_ns: int) -> None:
        """Take two times of one moment: the wall clock, and CLOCK_BOOTTIME, which nobody sets."""
        before, self._offset_ns = self._offset_ns, wall_ns - boot_ns
        if before is None or abs(self._offset_ns - before) < _JUMP_NS:
            return
        step_s = (self._offset_ns - before) // NS_PER_SEC
        self._jump = f"the wall clock was set by {step_s:+d} s"
        self._jump_until_ns = boot_ns + _REMEMBER_NS

    def problems(self, boot_ns: int) -> Iterator[SourceProblem]:
        """Yield what is wrong now."""
        if self._is_late:
            text = (
                "most ticks come late: raise the agent's CPU limit and weight, or choose a "
                "longer tick"
            )
            yield SourceProblem(Source.CLOCK, SourceState.DEGRADED, text)
        if boot_ns < self._jump_until_ns:
            text = (
                f"{self._jump}: check the time service of this host; certificates, and times in "
                "the history, depend on it"
            )
            yield SourceProblem(Source.CLOCK, SourceState.DEGRADED, text)


class SourceProblems:
    """Finds what is wrong with all sources of an agent; ``clock`` takes its ticks."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._unsupported = find_unsupported()
        self.clock = ClockWatch()

    def find(
        self,
        settings: Settings,
        workloads: tuple[Workload, ...],
        plan: Plan,
        config_problem: str,
        cluster: ClusterState | None,
    ) -> Iterator[SourceProblem]:
        """Yield the problems as of *plan*; *config_problem*: why the configuration is refused."""
        sampler = self._sampler
        if cluster is not None:
            yield from source_problems(cluster)
        needed = "net" in sampler.problems and not sampler.measured_by_netns
        traffic = needed and needs_traffic(settings, workloads)
        yield from probe_problems(sampler.problems, self._unsupported, plan, traffic=traffic)
        yield from config_problems(config_problem)
        boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self.clock.compare(time.time_ns(), boot_ns)
        yield from self.clock.problems(boot_ns)
