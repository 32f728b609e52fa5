# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Observes services and learns their sweet points, without a running agent and without a write."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path
import tempfile
import time

from actuators.executor import Executor
from actuators.journal import Journal
from controller.agent.sampler import Sampler
from controller.config.indicator import learned_specs
from controller.config.load import Config, ConfigError
from controller.core.decision import Plan
from controller.core.learning.state import LearnedIndicator
from controller.core.model import IndicatorName, Mode, QosClass, Workload
from controller.core.planner import Planner
from controller.core.settings import IndicatorSpec, Profile, Settings
from controller.core.units import NS_PER_SEC
from controller.host.facts import cpu_model, find_cgroup_layout
from controller.probes.service_level.collector import ServiceLevels
from controller.reconcilers.resctrl.monitor import ResctrlMonitor
from controller.workloads import static

__all__ = ("Observation", "observe")

_SCAN_NS = 5 * NS_PER_SEC


@dataclass(slots=True)
class Observation:
    """What was observed of one service.

    ``specs`` are the indicators that can be learned, ``learned`` what is known about them. For each
    indicator that has a source ``disturbances`` counts the ticks by what disturbed it (empty:
    nothing). ``neighbours`` counts those of all ``ticks`` in which something disturbed the node,
    also where it did not harm an indicator.
    """

    service: str
    profile: Profile
    specs: tuple[IndicatorSpec, ...]
    learned: Mapping[IndicatorName, LearnedIndicator] = field(default_factory=dict)
    own: LearnedIndicator | None = None
    disturbances: dict[IndicatorName, Counter[str]] = field(default_factory=dict)
    neighbours: Counter[str] = field(default_factory=Counter)
    ticks: int = 0


def observe(
    config: Config, services: Sequence[str], seconds: float, tell: Callable[[float], None]
) -> list[Observation]:
    """Observe *services* for *seconds*, or until a KeyboardInterrupt; return what was learned.

    *tell* is called in every tick with the time that is left, in s.

    :raises ConfigError: no cgroup that the configuration names for a service is there.
    :raises HostError: no cgroup hierarchy with the cpu controller is mounted.
    """
    layout = find_cgroup_layout()
    _check(static.scan(layout, config.workloads), config, services)
    observations = [_prepare(config, service) for service in services]
    settings = _settings(config, observations)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sweetpoint-")))
        off = config.resctrl._replace(manage=False, mount=False, monitor=False)
        # The monitor is off and needs an executor, which writes nothing and has nothing to undo.
        monitor = ResctrlMonitor(off, Executor(Journal(folder), ()), layout)
        sampler = stack.enter_context(contextlib.closing(Sampler(layout, config.counters, monitor)))
        levels = stack.enter_context(contextlib.closing(ServiceLevels(config.service_level)))

        def scan() -> tuple[Workload, ...]:
            return _workloads(static.scan(layout, config.workloads).workloads, services)

        workloads = scan()
        sampler.reconfigure(settings)
        sampler.set_workloads(workloads)
        planner = Planner(settings, workloads)
        with contextlib.suppress(KeyboardInterrupt):
            for left_s in _ticks(settings.tick_ns, seconds, scan, planner, sampler):
                snapshot = sampler.poll()
                snapshot = replace(snapshot, services=levels.poll(snapshot.time_ns))
                plan = planner.step(snapshot, ())
                _count(plan, planner.neighbours, observations)
                tell(left_s)
    learned = {(each.service, each.indicator): each for each in planner.learned}
    for each in observations:
        names = [spec.name for spec in each.specs]
        found = {name: learned.get((each.service, name)) for name in names}
        each.learned = {name: known for name, known in found.items() if known is not None}
        each.own = learned.get((each.service, IndicatorName.SERVICE))
    return observations


def _ticks(
    tick_ns: int,
    seconds: float,
    scan: Callable[[], tuple[Workload, ...]],
    planner: Planner,
    sampler: Sampler,
) -> Iterator[float]:
    """Yield the time that is left, in s, in every tick; follow the workloads between them."""
    now_ns = due_ns = scanned_ns = time.monotonic_ns()
    end_ns = now_ns + round(seconds * NS_PER_SEC)
    while due_ns < end_ns:
        time.sleep(max(0, due_ns - time.monotonic_ns()) / NS_PER_SEC)
        now_ns = time.monotonic_ns()
        due_ns = max(due_ns + tick_ns, now_ns)
        if now_ns - scanned_ns >= _SCAN_NS:
            scanned_ns = now_ns
            workloads = scan()
            sampler.set_workloads(workloads)
            planner.set_workloads(workloads)
        yield (end_ns - now_ns) / NS_PER_SEC


def _count(plan: Plan, neighbours: Sequence[str], observations: Sequence[Observation]) -> None:
    for each in observations:
        each.neighbours.update(neighbours)
        each.ticks += 1
    by_service = {each.service: each for each in observations}
    for report in plan.learned:
        # Profiles of other services may be learned ones too.
        if observation := by_service.get(report.service):
            counts = observation.disturbances.setdefault(report.indicator, Counter())
            counts[report.disturbance] += 1


def _prepare(config: Config, service: str) -> Observation:
    rule = next(
        each for each in config.workloads if each.service == service and each.qos is QosClass.LS
    )
    profile = config.settings.profiles[rule.profile]
    return Observation(service, profile, learned_specs(config.settings.tick_ns))


def _settings(config: Config, observations: Sequence[Observation]) -> Settings:
    """Return the settings with a profile per observed service in which everything is learned."""
    profiles = dict(config.settings.profiles)
    for each in observations:
        own = [spec for spec in each.profile.indicators if spec.name is IndicatorName.SERVICE]
        name = _profile_name(each.service)
        profiles[name] = replace(each.profile, name=name, indicators=(*each.specs, *own))
    host = replace(config.settings.host, cpu_model=cpu_model())
    return replace(config.settings, profiles=profiles, mode=Mode.OBSERVE, host=host)


def _profile_name(service: str) -> str:
    return f"learn/{service}"  # no profile of a file has a slash in its name


def _check(found: static.Scan, config: Config, services: Sequence[str]) -> None:
    # By a pattern a service may come later. What a rule names is there, or is named wrongly.
    absent = set(services) - {each.service for each in found.workloads}
    origins = tuple(f"{rule.origin}: " for rule in config.workloads if rule.service in absent)
    texts = (*found.missing, *found.left_out)
    if reasons := [each for each in texts if each.startswith(origins)]:
        raise ConfigError(reasons)


def _workloads(found: tuple[Workload, ...], services: Sequence[str]) -> tuple[Workload, ...]:
    return tuple(
        each._replace(profile=_profile_name(each.service))
        if each.qos is QosClass.LS and each.service in services
        else each
        for each in found
    )
