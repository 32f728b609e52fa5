# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The first sentence of an agent's page, and the agent's health: facts from /statusz.

One function per fact, so that the source of a fact can change without the words.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from controller.core.units import format_bytes, format_cpus, format_duration
from controller.page.document import Badge
from controller.page.quantities import cpus_of, spaced, times
from controller.page.view import idle_cgroups, is_below, mapping, number, records, text

__all__ = (
    "badge",
    "best_effort_share",
    "first_sentence",
    "health",
    "is_idle",
    "knobs_sentence",
    "quota_cpus",
    "well_being",
)

_NAMED = 3  # services in the sentence
_PATH = 4096
_BADGES = {"enforce": Badge("enforcing", "on"), "observe": Badge("observing", "off")}


class WellBeing(NamedTuple):
    """``above``: services above a sweet point with their worst ratios, the worst first.

    ``measured`` counts the services with a fresh value, ``all`` those with an indicator.
    """

    above: tuple[tuple[str, float], ...]
    measured: int
    all: int


def first_sentence(status: Mapping[str, Any], cpus: int) -> str:
    """Return who suffers, what batch work may use and what it caused; *cpus*: of the host."""
    found = well_being(status)
    parts = [_services(found), _batch(status, cpus)]
    if found.above:
        worst = found.above[0][0]
        share = best_effort_share(status, worst)
        of = "it" if found.all == 1 else f"what {worst} suffers"
        caused = "an unknown part" if share is None else spaced(f"{100 * share:.0f}%")
        parts.append(f"best-effort caused {caused} of {of}")
    return f"{'; '.join(parts)}."


def knobs_sentence(status: Mapping[str, Any], cpus: int) -> str:
    """Return what holds batch work back now, as a sentence."""
    says = _batch(status, cpus)
    return f"{says[0].upper()}{says[1:]}."


def badge(status: Mapping[str, Any]) -> Badge:
    """Return the mode of the agent."""
    return _BADGES.get(text(status.get("mode")), Badge("mode unknown", "off"))


def well_being(status: Mapping[str, Any]) -> WellBeing:
    """Return which services are above their sweet points."""
    worst: dict[str, float | None] = {}
    for loop in records(mapping(status.get("plan")).get("loops")):
        service = text(loop.get("service"))
        value, sweet_point = number(loop.get("value")), number(loop.get("sweet_point"))
        worst.setdefault(service, None)
        if loop.get("status") == "fresh" and value is not None and sweet_point:
            worst[service] = max(value / sweet_point, worst[service] or 0.0)
    known = {service: ratio for service, ratio in worst.items() if ratio is not None}
    above = sorted(
        ((s, ratio) for s, ratio in known.items() if ratio > 1), key=lambda each: -each[1]
    )
    return WellBeing(tuple(above), len(known), len(worst))


def quota_cpus(status: Mapping[str, Any]) -> float | None:
    """Return what the quotas in force allow best-effort work; ``None``: no loop asked for one.

    A quota that a workload has for its own limit is no quota of the agent's.
    """
    record = mapping(status.get("in_force"))
    asked = any(
        each.get("cpus") is not None and each.get("channel") is not None
        for each in records(record.get("limited"))
    )
    return number(record.get("cpus")) if asked and status.get("mode") == "enforce" else None


def is_idle(status: Mapping[str, Any]) -> bool:
    """Return whether best-effort work runs under sched-idle, by the kernel's files."""
    idle = idle_cgroups(status)
    return any(is_below(text(each.get("path"), _PATH), idle) for each in _best_effort(status))


def best_effort_share(status: Mapping[str, Any], service: str) -> float | None:
    """Return best-effort's part in what hurts *service*, 0 to 1; ``None``: not known."""
    causes = records(mapping(status.get("plan")).get("causes"))
    shares = [
        number(each.get("be_share")) for each in causes if text(each.get("service")) == service
    ]
    return max((share for share in shares if share is not None), default=None)


def health(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return how the agent itself is, as names and values; what is missing is left out."""
    tick, cost = mapping(status.get("tick")), mapping(status.get("agent"))
    took, p99 = number(tick.get("duration_ns")), number(tick.get("duration_p99_ns"))
    age = number(status.get("data_age_ns"))
    facts: list[tuple[str, str]] = []
    if took is not None and p99 is not None:
        facts.append(("tick", f"{format_duration(took)}, p99 {format_duration(p99)}"))
    if (count := number(tick.get("count"))) is not None:
        late, failed = number(tick.get("overruns")) or 0, number(tick.get("failed")) or 0
        facts.append(("ticks", f"{count:.0f}, {late:.0f} too long, {failed:.0f} failed"))
    if (used := number(cost.get("used_cpus"))) is not None:
        facts.append(("CPU", format_cpus(used) + _budget(cost, "budget_cpus", format_cpus)))
    if (pss := number(cost.get("pss_bytes"))) is not None:
        facts.append(("memory", format_bytes(pss) + _budget(cost, "budget_bytes", format_bytes)))
    if age is not None:
        facts.append(("age of the data", format_duration(age)))
    return [(name, spaced(value)) for name, value in facts]


def _services(found: WellBeing) -> str:
    if not found.all:
        return "No service has an indicator"
    if not found.measured:
        return f"None of {found.all} services is measured now"
    unknown = found.all - found.measured
    unmeasured = (
        f", {unknown} {'is' if unknown == 1 else 'are'} not measured now" if unknown else ""
    )
    if not found.above:
        return f"0 of {found.all} services are above their sweet points{unmeasured}"
    named = [f"{name}, {times(ratio)} times" for name, ratio in found.above[:_NAMED]]
    more = len(found.above) - len(named)
    named += [f"{more} more"] if more else []
    is_above = (
        "is above its sweet point" if len(found.above) == 1 else "are above their sweet points"
    )
    return f"{len(found.above)} of {found.all} services {is_above} ({'; '.join(named)}){unmeasured}"


def _batch(status: Mapping[str, Any], cpus: int) -> str:
    if status.get("mode") == "observe":
        return "batch work is not limited, because the agent only observes"
    if not any(_best_effort(status)):
        return "there is no batch work"
    quota = quota_cpus(status)
    if quota is not None:
        return f"batch work is limited to {cpus_of(quota, cpus)}"
    if is_idle(status):
        return "batch work has no quota, and yields to services (sched-idle)"
    return "batch work is not limited"


def _budget(cost: Mapping[str, Any], name: str, words: Callable[[float], str]) -> str:
    budget = number(cost.get(name))
    return "" if budget is None else f" of {words(budget)}"


def _best_effort(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for each in records(status.get("workloads")):
        if each.get("qos") == "best-effort":
            yield each
