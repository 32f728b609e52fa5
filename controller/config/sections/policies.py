# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``policies:``: what other nodes of a fleet, and other hours, have otherwise.

``set`` has the form of the file itself. Only keys are permitted that a running agent applies
without a restart, and that limit best-effort work or say whether and by which law it is limited.
They are few, so that a person can say what a node does at a given time.
"""

from collections.abc import Mapping
from datetime import UTC, tzinfo
import re
from typing import Annotated, ClassVar
from zoneinfo import ZoneInfo, available_timezones

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from controller.config.calendar_window import Window
from controller.config.fields import Measure, Strict, Text, cpus, duration, raw_default
from controller.config.label_selector import (
    LABEL_KEY,
    LABEL_VALUE,
    LabelSelector,
    Operator,
    Requirement,
    equal,
)
from controller.config.sections.knobs import MemoryAmount
from controller.config.sections.kubernetes_profiles import PROFILE
from controller.core.model import Mode
from controller.core.settings import CoreMode
from controller.host.names import did_you_mean

__all__ = (
    "MAX_POLICIES",
    "POLICY",
    "LabelKey",
    "LabelValue",
    "PolicyModel",
    "Replacements",
    "build_selector",
    "build_windows",
)

MAX_POLICIES = 16
POLICY = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_MAX_TIMES = 8
_MAX_LABELS = 16
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]"
_BEGIN = f"^{_CLOCK}$"
_END = rf"^(({'|'.join(_WEEKDAYS)}) )?({_CLOCK}|24:00)$"
_LONGEST_MONTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

Replacements = Annotated[
    dict[Annotated[str, Field(pattern=PROFILE)], Annotated[str, Field(pattern=PROFILE)]],
    Field(max_length=64),
]
LabelKey = Annotated[str, Field(pattern=LABEL_KEY)]
LabelValue = Annotated[str, Field(pattern=LABEL_VALUE)]


def _names(pattern: str) -> str:
    return rf"^({pattern})(-({pattern}))?(, *({pattern})(-({pattern}))?)*$"


_DAYS_PATTERN, _MONTHS_PATTERN = _names("|".join(_WEEKDAYS)), _names("|".join(_MONTHS))
_DATES_PATTERN = _names("[1-9]|[12][0-9]|3[01]")


class RequirementModel(Strict):
    """A condition on one label of the node."""

    key: LabelKey
    """Key of the label."""
    operator: Annotated[Operator, Text]
    """How the label is compared: In and NotIn with values, Exists and DoesNotExist without."""
    values: Annotated[list[LabelValue], Field(max_length=64)] = raw_default([])
    """Values for In and NotIn; a node without the label is NotIn."""


class SelectorModel(Strict):
    """A label selector as in Kubernetes: a node must meet all of it."""

    match_labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=_MAX_LABELS)] = Field(
        default={}, alias="matchLabels"
    )
    """Labels that the node must have, each with this value."""
    match_expressions: Annotated[list[RequirementModel], Field(max_length=_MAX_LABELS)] = Field(
        default=[], alias="matchExpressions"
    )
    """Further conditions on labels of the node."""


class TimesModel(Strict):
    """A window of time that begins on certain days."""

    days: Annotated[str, Field(pattern=_DAYS_PATTERN)] | None = None
    """Days of the week on which the window begins, such as mon-fri or sat,sun; without it all."""
    dates: Annotated[Measure, Field(pattern=_DATES_PATTERN)] | None = None
    """Days of the month on which the window begins, such as 1-3,15; without it all."""
    months: Annotated[str, Field(pattern=_MONTHS_PATTERN)] | None = None
    """Months in which the window begins, such as nov-dec; without it all."""
    begin: Annotated[str, Field(pattern=_BEGIN)] = Field(default="00:00", alias="from")
    """Local time at which the window begins, such as 22:00."""
    until: Annotated[str, Field(pattern=_END)] = "24:00"
    """Local time at which the window ends, the first one after it began; also on a day, such as
    mon 06:00."""


class _Settable(Strict):
    unknown_key: ClassVar[str] = "a policy cannot set this key"


class PolicyMemoryModel(_Settable):
    """Keys of the section memory."""

    guard: bool | None = None
    """Whether best-effort work is limited to the memory that everything else leaves."""
    margin: MemoryAmount | None = None
    """Memory that best-effort work leaves free."""


class PolicyCoreModel(_Settable):
    """Keys of the section core_scheduling."""

    mode: Annotated[CoreMode, Text] | None = None
    """When best-effort work has cookies: auto, on or off."""


class PolicyLawModel(_Settable):
    """Switches of the section law, for a trial of a part of the control law."""

    cut_by_signal: bool | None = None
    """Whether memory traffic, not waits for a CPU, shares out the cut of the cache channel."""
    fast_release: bool | None = None
    """Whether a squeeze that no longer has an effect is released within seconds."""
    fast_rise: bool | None = None
    """Whether a squeeze that brings nothing yet rises ever faster."""
    verify_squeeze: bool | None = None
    """Whether a full squeeze that brings nothing or misses the sweet point is let go on trial."""
    find_harm: bool | None = None
    """Whether each workload's harm is estimated from what it does, with micro-probes."""
    margin_by_scatter: bool | None = None
    """Whether the sweet point's distance from an objective follows the scatter of the service's
    figure."""
    spare_harmless: bool | None = None
    """Whether harmless workloads get the CPUs that a squeezed culprit leaves."""
    rungs_by_work: bool | None = None
    """Whether a squeeze of the cache channel begins with the quota, and cache and bandwidth limits
    come first only where it fails."""


class PolicyLimitsModel(_Settable):
    """Keys of the section eviction, or of kubernetes.eviction."""

    per_hour: Annotated[int, Field(ge=1, le=60)] | None = None
    """Most evictions on this host in an hour."""
    cool_down: Annotated[int, duration("10s", "24h")] | None = None
    """Shortest time between two evictions."""


class PolicyKubernetesModel(_Settable):
    """Keys of the section kubernetes."""

    eviction: PolicyLimitsModel | None = None
    """Limits of evictions of pods."""


class PolicyTrialModel(_Settable):
    """Keys of the section trial."""

    enabled: bool | None = None
    """Whether trials begin by themselves."""


class PolicySetModel(_Settable):
    """What a policy sets, in the form of this file; the rest stays as it is without the policy."""

    mode: Annotated[Mode, Text] | None = None
    """Whether knobs are written: observe or enforce; a policy may lower it as well as raise it."""
    reserve: Annotated[float, cpus("0cpu", "1024cpu")] | None = None
    """CPUs that best-effort work never gets while it is squeezed."""
    replace_profiles: Replacements | None = None
    """Profile that services get in place of another; further entries of the file stay."""
    memory: PolicyMemoryModel | None = None
    """How the memory of best-effort work is limited."""
    core_scheduling: PolicyCoreModel | None = None
    """When cookies keep best-effort work off the cores that services run on."""
    law: PolicyLawModel | None = None
    """Parts of the control law, switched on or off; a trial shows what one brings."""
    eviction: PolicyLimitsModel | None = None
    """Limits of evictions on a host without Kubernetes."""
    kubernetes: PolicyKubernetesModel | None = None
    """Limits of evictions of pods, in a cluster."""
    trial: PolicyTrialModel | None = None
    """Whether trials begin by themselves."""


def _zone(name: object) -> str:
    """Return *name* if this host knows the time zone.

    :raises PydanticCustomError: it does not.
    """
    if isinstance(name, str) and _find_zone(name) is not None:
        return name
    text = "must be the name of a time zone such as Europe/Berlin{hint}"
    hint = did_you_mean(name, available_timezones(), most=1) if isinstance(name, str) else ""
    raise PydanticCustomError("zone", text, {"hint": f" ({hint})" if hint else ""})


def _find_zone(name: str) -> tzinfo | None:
    if name == "UTC":
        return UTC
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+_/-]{0,63}", name):
        return None
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # a directory; not a zone; not known
        return None


class PolicyModel(Strict):
    """Keys with other values on some nodes, at some times, or both."""

    name: Annotated[str, Field(pattern=POLICY)]
    """Name of the policy in log, metrics and commands."""
    nodes: SelectorModel | None = None
    """Which nodes the policy is for, by labels of the Node; without it all."""
    times: Annotated[list[TimesModel], Field(max_length=_MAX_TIMES)] = raw_default([])
    """When the policy is in force, in any of these windows; without one always."""
    time_zone: Annotated[
        str, BeforeValidator(_zone), WithJsonSchema({"type": "string", "minLength": 1})
    ] = "UTC"
    """Time zone of the windows, such as Europe/Berlin."""
    rollout: bool = False
    """Whether a rollout may put the policy in force on all nodes, or on none."""
    changes: PolicySetModel = Field(alias="set")
    """Keys of this file that have another value while the policy is in force."""


def build_selector(model: SelectorModel | None) -> LabelSelector | None:
    """Return the checked selector, ``None``: all nodes.

    :raises ValueError: an operator has values that it cannot have, or lacks those it needs.
    """
    if model is None:
        return None
    requirements = [*equal(model.match_labels)]
    for each in model.match_expressions:
        needs = each.operator in (Operator.IN, Operator.NOT_IN)
        if needs is not bool(each.values):
            verb = "needs values" if needs else "takes no values"
            raise ValueError(f"{each.key}: {each.operator} {verb}")
        requirements.append(Requirement(each.key, each.operator, frozenset(each.values)))
    return LabelSelector(tuple(requirements)) if requirements else None


def build_windows(model: PolicyModel) -> tuple[Window, ...]:
    """Return the windows of a policy.

    :raises ValueError: one of them begins on no day.
    """
    zone = _find_zone(model.time_zone) or UTC  # the model has checked it
    return tuple(_window(each, zone) for each in model.times)


def _window(model: TimesModel, zone: tzinfo) -> Window:
    weekday, _, until = model.until.rpartition(" ")
    dates = _numbers(model.dates, {str(day): day for day in range(1, 32)})
    months = _numbers(model.months, {name: at for at, name in enumerate(_MONTHS, 1)})
    if min(dates) > max(_LONGEST_MONTHS[month - 1] for month in months):
        raise ValueError(f"{model.months} has no day {model.dates}")
    return Window(
        zone=zone,
        weekdays=_numbers(model.days, {name: at for at, name in enumerate(_WEEKDAYS)}),
        dates=dates,
        months=months,
        from_min=_minutes(model.begin),
        until_min=_minutes(until),
        until_weekday=_WEEKDAYS.index(weekday) if weekday else None,
    )


def _minutes(clock: str) -> int:
    hour, _, minute = clock.partition(":")
    return 60 * int(hour) + int(minute)


def _numbers(text: str | None, known: Mapping[str, int]) -> frozenset[int]:
    """Return the numbers of the names in *text*, such as ``sat-mon,wed``; of all without it."""
    names = [*known]
    found: set[int] = set()
    for part in [] if text is None else text.split(","):
        first, _, last = part.strip().partition("-")
        begin, end = names.index(first), names.index(last or first)
        # A range may go over the end, as from November to February.
        over = [] if begin <= end else names[: end + 1]
        inside = names[begin : end + 1] if begin <= end else names[begin:]
        found.update(known[name] for name in (*inside, *over))
    return frozenset(found or known.values())
