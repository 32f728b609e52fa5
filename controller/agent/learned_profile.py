# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The text of a profile with learned sweet points, for people to read and to edit."""

from collections import Counter
from collections.abc import Iterator
import math
import re

from controller.agent.observation import Observation
from controller.config.indicator import has_bins
from controller.config.yaml_document import write_document
from controller.core.learning.normal import Normal
from controller.core.learning.quiet import Disturbance
from controller.core.learning.state import LearnedIndicator, State
from controller.core.model import IndicatorName
from controller.core.settings import IndicatorSpec
from controller.core.units import format_cpus, format_duration

__all__ = ("find_obstacle", "profile_text")

# What is on the node beside the service; the other disturbances are the service's own.
_NEIGHBOURS = (Disturbance.BEST_EFFORT, Disturbance.OUTSIDE, Disturbance.STEAL)
# Share of the time from which on a neighbour is not an episode but the state of the node.
_MOSTLY = 0.5


def find_obstacle(observation: Observation) -> str:
    """Return why no profile can be made from *observation*; empty if one can."""
    if not observation.disturbances:
        return "it was not found, or not long enough, to measure anything"
    for disturbance in _NEIGHBOURS:
        share = observation.neighbours[disturbance] / max(1, observation.ticks)
        if share > _MOSTLY:
            return f"{disturbance} in {share:.0%} of the time"
    if any(State.restored(each).is_sure for each in observation.learned.values()):
        return ""
    common = sum(observation.disturbances.values(), Counter[str]()).most_common(1)[0][0]
    needed = "nothing is sure yet: at least 60 s without a disturbance at about the same load"
    return f"{needed}; most of the time {common}" if common else needed


def profile_text(observation: Observation, cpu: str) -> str:
    """Return the profile, in YAML, for a CPU of the model *cpu*; something must be sure."""
    return "\n".join(_lines(observation, cpu)) + "\n"


def _lines(observation: Observation, cpu: str) -> Iterator[str]:
    # The name of the service may have any characters; that of a profile may not.
    name = re.sub(r"[^a-z0-9.-]+", "-", observation.service.lower()).strip("-.")[:62] or "learned"
    yield f"# Learned from the service {_printable(observation.service)} on {_printable(cpu)}."
    yield "# median and p95 are of undisturbed windows. A sweet point is what is allowed above"
    yield "#   the median, or p95 if that is higher; with an objective, what that allows."
    yield write_document({"name": name}).rstrip()  # in quotes if it looks like a number
    yield "description: sweet points learned by sweetpoint learn"
    yield "indicators:"
    for spec in observation.specs:
        known = observation.learned.get(spec.name)
        state = None if known is None else State.restored(known)
        if state is None or not state.is_sure:
            yield f"  # {spec.name}: {_why_not(observation, spec, state)}"
            continue
        yield f"  {spec.name}:"
        for line in _evidence(spec, state):
            yield f"    # {line}"
        yield from (f"    {line}" for line in _sweet_points(spec, state, observation.own))


def _why_not(observation: Observation, spec: IndicatorSpec, state: State | None) -> str:
    counts = observation.disturbances.get(spec.name)
    if counts is None:
        return "this host or service has no source for it"
    windows = 0 if state is None else state.windows
    common = counts.most_common(1)[0][0] or "the values differ too much"
    return f"not sure after {windows} undisturbed windows; {common}"


def _evidence(spec: IndicatorSpec, state: State) -> Iterator[str]:
    scale = math.log(state.tolerance)
    parts: list[tuple[int | None, Normal]] = [(None, state.whole), *sorted(state.loads.items())]
    for number, normal in parts:
        if normal.is_sure and normal.middle is not None and normal.high is not None:
            middle, high = (
                _value(spec, math.exp(each * scale)) for each in (normal.middle, normal.high)
            )
            where = "at all loads" if number is None else f"at a load of {_load(spec, number)}"
            yield f"{where}: median {middle}, p95 {high}, {normal.windows} windows"
    allowed = state.relation.allowed
    if allowed is not None:
        yield f"the objective allows that the work takes {math.expm1(allowed):.0%} longer"
    else:
        yield f"allowed above the median: {spec.allow:.0%}"


def _sweet_points(spec: IndicatorSpec, state: State, own: LearnedIndicator | None) -> Iterator[str]:
    own_ns = None if own is None else State.restored(own).median_at(0.0)
    learned = state.spec(spec, own_ns)
    points = [learned.sweet_point, *(each.sweet_point for each in learned.bins)]
    known = [point for point in points if point is not None]
    if not learned.bins or not has_bins(spec.name):
        # One sweet point for all loads must be the one of the load at which most is normal.
        yield f"sweet_point: {_value(spec, max(known))}"
        return
    yield f"sweet_point: {_value(spec, known[0])}"
    yield "bins:"
    for each in learned.bins:
        above = _load_text(spec, each.above)
        yield f"  - {{above: {above}, sweet_point: {_value(spec, each.sweet_point)}}}"


def _value(spec: IndicatorSpec, value: float) -> str:
    if spec.is_time:
        return format_duration(value)
    if spec.name.startswith("psi_") or spec.name is IndicatorName.WAIT_RATIO:
        return f"{100 * value:.3g}%"
    return f"{value:.4g}{'/s' if spec.name is IndicatorName.REFAULTS else ''}"


def _load(spec: IndicatorSpec, number: int) -> str:
    return (
        f"{_load_text(spec, 2.0 ** (number / 2))} to {_load_text(spec, 2.0 ** (number / 2 + 0.5))}"
    )


def _load_text(spec: IndicatorSpec, load: float) -> str:
    if spec.name is IndicatorName.CPU_PER_PACKET:
        return f"{load:.0f}/s"
    return f"{1000 * load:.0f}mcpu" if load < 1 else format_cpus(load)


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text[:200])
