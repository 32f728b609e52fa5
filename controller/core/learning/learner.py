# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Learns the sweet points that profiles ask for, and puts them into the services' profiles.

A value counts once per window of its indicator, while nothing disturbs the service
(``quiet.QuietMonitor``). What was learned for another image of the service or another model of the
CPU is forgotten. Where the service reports its own latency and has an objective for it, the sweet
point is raised to what the objective allows, never lowered. The sweet point of that latency itself
lies below the objective by a margin (``objective``).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from controller.core.decision import UNKNOWN, Indicator, IndicatorStatus, LearnedReport, Verdict
from controller.core.indicators.measurement import sweet_point_at
from controller.core.indicators.tracker import IndicatorTracker
from controller.core.learning.objective import Margin, Objective
from controller.core.learning.quiet import Disturbance, QuietMonitor
from controller.core.learning.state import LearnedIndicator, State, inflation
from controller.core.model import IndicatorName
from controller.core.settings import HostFacts, IndicatorSpec, Profile
from controller.core.units import NS_PER_SEC, format_duration
from controller.core.workload_index import Service, WorkloadIndex

__all__ = ("SweetPointLearner",)

_Key = tuple[str, IndicatorName]

# Most indicators of services that are kept, also of those that are not on the node now.
_MAX_STATES = 1000


@dataclass(slots=True)
class _Task:
    """An indicator of a present service that is learned; ``spec`` is as it is configured.

    ``in_force`` is the specification with the learned sweet points, ``due_ns`` the time of the next
    window; ``None``: not known yet. ``own`` is the state of the service's own latency and
    ``objective_ns`` the sweet point of that; ``None``: it has none.
    """

    service: Service
    spec: IndicatorSpec
    state: State
    in_force: IndicatorSpec
    own: State | None
    objective_ns: float | None
    due_ns: int | None = None
    report: LearnedReport | None = None

    def goes_on_with(self, spec: IndicatorSpec) -> bool:
        """Whether a learned specification is in force, and *spec* is what it was learned for."""
        return self.in_force is not self.spec and self.spec == spec


class SweetPointLearner:
    """What is learned about all services.

    ``verdicts`` are those of the last ``update``, and of ``set_workloads`` since the one before.
    """

    def __init__(self, past: Sequence[LearnedIndicator] = ()) -> None:
        """*past* was learned by an earlier object (``learned``)."""
        self._states: dict[_Key, State] = {
            (each.service, each.indicator): State.restored(each)
            for each in past[-_MAX_STATES:]
            if each.is_sane
        }
        self._tasks: dict[_Key, _Task] = {}
        self._objectives: dict[str, Objective] = {}
        self._quiet = QuietMonitor()
        self._configured = self._in_force = WorkloadIndex((), {})
        self._apply_ns = 0
        self.verdicts: tuple[Verdict, ...] = ()
        self._untold: tuple[Verdict, ...] = ()

    @property
    def neighbours(self) -> tuple[Disturbance, ...]:
        """What disturbed the node in the last tick, also where it harmed no service."""
        return self._quiet.present

    @property
    def learned(self) -> tuple[LearnedIndicator, ...]:
        """What is known, that of the services seen last at the end; for a later object."""
        return tuple(
            state.record(*key)
            for key, state in self._states.items()
            if state.windows or state.margin is not None
        )

    def set_workloads(
        self, configured: WorkloadIndex, host: HostFacts, margins: bool
    ) -> WorkloadIndex:
        """Take the workloads with the profiles as configured; return them with learned profiles.

        *margins*: those below objectives are learned as well.
        """
        before, self._tasks = self._tasks, {}
        objectives, self._objectives = self._objectives, {}
        for service in configured.services.values():
            wanted = [spec for spec in service.profile.indicators if spec.learn]
            figure = service.figure
            if not wanted and (figure is None or figure.objective is None):
                continue
            made_for = host.cpu_model, service.image
            objective_ns, own = None, None
            if figure is not None and (figure.is_time or figure.objective is not None):
                # The usual tolerance of a latency, which varies by factors.
                own = self._state((service.name, IndicatorName.SERVICE), made_for, 2.0)
                if figure.is_time:
                    objective_ns = figure.objective or figure.sweet_point
                if margins and figure.objective is not None:
                    if own.margin is None:
                        own.margin = Margin()
                    before_this = objectives.get(service.name)
                    self._objectives[service.name] = Objective(figure, own.margin, before_this)
            for spec in wanted:
                key = service.name, spec.name
                task = before.get(key)
                state = self._state(key, made_for, spec.tolerance)
                state.relate_to(objective_ns)
                self._tasks[key] = _Task(
                    service=service,
                    spec=spec,
                    state=state,
                    in_force=task.in_force if task and task.goes_on_with(spec) else spec,
                    own=own,
                    objective_ns=objective_ns,
                    due_ns=None if task is None else task.due_ns,
                    report=None if task is None else task.report,
                )
        while len(self._states) > _MAX_STATES + len(self._tasks):
            del self._states[next(iter(self._states))]
        if not self._tasks:
            self._quiet = QuietMonitor()
        self._configured = configured
        self._untold += self._put_in_force(anew=True)
        return self._in_force

    def _state(self, key: _Key, made_for: tuple[str, str], tolerance: float) -> State:
        state = self._states.pop(key, None)
        if state is None or not state.keep_for(*made_for, tolerance):
            state = State(*made_for, tolerance)
        self._states[key] = state  # at the end: used last
        return state

    def update(
        self,
        indicators: Iterable[Indicator],
        tracker: IndicatorTracker,
        cpus: int,
        now_ns: int,
        hold: bool,
        squeezed: Callable[[], Set[str]],
    ) -> WorkloadIndex:
        """Take the *indicators* of one tick; return the workloads with learned profiles.

        *hold*: this tick is the first one after a gap. *squeezed* returns the services for which
        best-effort work is squeezed. The result is the same object until a sweet point changes.
        """
        self.verdicts, self._untold = self._untold, ()
        if not self._tasks and not self._objectives:
            return self._in_force
        if self._tasks:
            self._quiet.update(tracker, self._configured, cpus, now_ns, hold)
        found = {(each.service, each.name): each for each in indicators}
        for number, (key, task) in enumerate(self._tasks.items()):
            if task.due_ns is None:
                # Spread over the window, so that one tick does not evaluate all.
                task.due_ns = now_ns + number % 5 * task.spec.window_ns // 5
            indicator = found.get(key)
            if indicator is None:
                task.report = None  # its source is gone
            if now_ns < task.due_ns or indicator is None:
                continue
            task.due_ns = now_ns + task.spec.window_ns
            own = found.get((task.service.name, IndicatorName.SERVICE))
            self._observe(task, indicator, own, tracker, now_ns)
        if self._objectives:
            services = squeezed()
            for name, objective in self._objectives.items():
                objective.add(found.get((name, IndicatorName.SERVICE)), name in services)
        if now_ns >= self._apply_ns:
            # Seldom, because a change ends the quiescence of the services.
            self._apply_ns = now_ns + 10 * NS_PER_SEC
            self.verdicts += self._put_in_force()
        return self._in_force

    @property
    def reports(self) -> tuple[LearnedReport, ...]:
        """One per learned indicator whose source is there."""
        known = (task.report for task in self._tasks.values())
        return tuple(each for each in known if each is not None)

    def _observe(
        self,
        task: _Task,
        indicator: Indicator,
        own: Indicator | None,
        tracker: IndicatorTracker,
        now_ns: int,
    ) -> None:
        disturbance = _missing(indicator) or self._quiet.disturbance(
            task.service, task.spec, tracker
        )
        value = indicator.value
        own_ns = own.value if own is not None and own.status is IndicatorStatus.FRESH else None
        if value is not None and disturbance is Disturbance.NONE:
            spec = task.spec
            task.state.add(value, indicator.load, spec.resolution, spec.window_ns)
            known = task.own
            # Once in a window, not once for each indicator.
            if known and own_ns is not None and now_ns - known.taken_ns >= spec.window_ns:
                known.taken_ns = now_ns
                known.add(own_ns, 0.0, 1.0, spec.window_ns)
        if value is not None and own_ns and task.own is not None and task.objective_ns:
            normal_ns, median = task.own.median_at(0.0), task.state.median_at(indicator.load)
            if normal_ns is not None and median is not None:
                x = inflation(task.spec.name, value, median, normal_ns)
                task.state.relation.add(x, own_ns / task.objective_ns)
        normal = task.state.normal_at(indicator.load)
        task.report = LearnedReport(
            service=task.service.name,
            indicator=task.spec.name,
            sweet_point=sweet_point_at(task.in_force, indicator.load),
            is_sure=task.state.is_sure,
            certainty=normal.certainty,
            windows=task.state.windows,
            disturbance=str(disturbance),
            is_time=task.spec.is_time,
        )

    def _put_in_force(self, anew: bool = False) -> tuple[Verdict, ...]:
        """Compute the sweet points of all services, without small changes; return what changed."""
        verdicts: list[Verdict] = []
        changed = anew
        specs: dict[str, dict[IndicatorName, IndicatorSpec]] = {}
        for (service, name), task in self._tasks.items():
            own_ns = None if task.own is None else task.own.median_at(0.0)
            wanted = task.state.spec(task.spec, own_ns)
            if not _is_same(task.in_force, wanted):
                verdicts += _explain(task, wanted)
                task.in_force = wanted
                changed = True
            if task.in_force is not task.spec:
                specs.setdefault(service, {})[name] = task.in_force
        for service, objective in self._objectives.items():
            if objective.put_in_force():
                subject = f"{service} {IndicatorName.SERVICE}"
                verdicts.append(Verdict(subject=subject, text=objective.reason))
                changed = True
            if objective.in_force is not objective.spec:
                specs.setdefault(service, {})[IndicatorName.SERVICE] = objective.in_force
        if changed:
            services = self._configured.services
            self._in_force = self._configured.with_profiles(
                {name: _with_specs(services[name].profile, each) for name, each in specs.items()}
            )
        return tuple(verdicts)


def _missing(indicator: Indicator) -> Disturbance:
    if indicator.status in UNKNOWN:
        return Disturbance.NO_DATA
    if indicator.status is IndicatorStatus.IDLE:
        return Disturbance.NO_LOAD
    return Disturbance.FEW_EVENTS if indicator.value is None else Disturbance.NONE


def _with_specs(profile: Profile, specs: Mapping[IndicatorName, IndicatorSpec]) -> Profile:
    return replace(
        profile, indicators=tuple(specs.get(spec.name, spec) for spec in profile.indicators)
    )


def _is_same(before: IndicatorSpec, after: IndicatorSpec) -> bool:
    """Whether the sweet points of *after* are so close to those of *before* that these stay."""
    if before is after:
        return True
    if [each.above for each in before.bins] != [each.above for each in after.bins]:
        return False
    points = [
        (old, new)
        for old, new in zip(_points(before), _points(after), strict=True)
        if old is not new
    ]
    return all(
        old is not None and new is not None and abs(new - old) <= 0.02 * old for old, new in points
    )


def _points(spec: IndicatorSpec) -> list[float | None]:
    return [spec.sweet_point, *(each.sweet_point for each in spec.bins)]


def _explain(task: _Task, wanted: IndicatorSpec) -> list[Verdict]:
    """Return the verdict that a sweet point has become sure, or is not any more."""
    was_sure, is_sure = task.in_force is not task.spec, wanted is not task.spec
    if was_sure is is_sure:
        return []
    if is_sure:
        known = [each for each in _points(wanted) if each is not None]
        text = f"learned a sweet point of {_range(known, task.spec)}"
    else:
        text = "what was learned does not hold any more"
    given = task.spec.sweet_point
    if given is not None:
        text += f"; that of the profile is {_range([given], task.spec)}"
    text += f" ({task.state.windows} undisturbed windows)"
    return [Verdict(subject=f"{task.service.name} {task.spec.name}", text=text)]


def _range(points: Sequence[float], spec: IndicatorSpec) -> str:
    texts = [
        format_duration(point) if spec.is_time else f"{point:.3g}"
        for point in dict.fromkeys((min(points), max(points)))
    ]
    return " to ".join(texts)
