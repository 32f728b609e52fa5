# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What ``sweetpoint top`` and the page show: rows made from /statusz, and how they change.

The page comes from the network, and perhaps from an agent of another version. A field that is
missing or of another type is left out; no text reaches the terminal with control characters in it.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
import fnmatch
from typing import Any, NamedTuple

from controller.core.model import Pause
from controller.core.units import (
    NS_PER_SEC,
    count,
    format_bandwidth,
    format_cpus,
    format_duration,
)
from controller.host.names import printable
from controller.page.quantities import position

__all__ = (
    "ChannelRow",
    "PartRow",
    "ServiceRow",
    "Tracker",
    "View",
    "WorkloadRow",
    "bar",
    "idle_cgroups",
    "is_below",
    "mapping",
    "number",
    "paused",
    "records",
    "spark",
    "text",
)

_TREND = 60
_MOST_NAME = 64
_MOST_TEXT = 400
_MOST_MISSING = 5
_RATIOS = ("wait_ratio", "net_drops", "psi_cpu", "psi_memory", "psi_io")
_SPARKS = "▁▂▃▄▅▆▇█"


class ServiceRow(NamedTuple):
    """An indicator of a service. ``ratio`` is value / sweet point; ``trend`` are past ratios.

    ``origin`` says where the sweet point is from: ``learned``, how far learning is, or empty where
    the profile gives it.
    """

    service: str
    indicator: str
    channel: str
    status: str
    value: str
    sweet_point: str
    origin: str
    ratio: float | None
    trend: tuple[float | None, ...]


class WorkloadRow(NamedTuple):
    """A best-effort workload: its quota, its use and its part in what hurts services."""

    name: str
    allowance: str
    use_cpus: float | None
    blame: float
    harms: str


class ChannelRow(NamedTuple):
    """A channel: why it squeezes or not, how hard, for which service, and its knobs."""

    channel: str
    state: str
    demand: float
    service: str
    knobs: str


class PartRow(NamedTuple):
    """Something that hurts a service on a channel: its kind, its name if it has one, its part."""

    service: str
    channel: str
    kind: str
    name: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One page. ``notes`` are warnings, ``decisions`` the last ones, the newest first.

    ``problems`` are the notes about what is not well, without pauses and policies in force.
    ``parts`` are the largest parts of what hurts services now.
    """

    head: str
    notes: tuple[str, ...]
    services: tuple[ServiceRow, ...]
    workloads: tuple[WorkloadRow, ...]
    channels: tuple[ChannelRow, ...]
    decisions: tuple[str, ...]
    parts: tuple[PartRow, ...] = ()
    problems: tuple[str, ...] = ()


def bar(ratio: float | None, width: int) -> str:
    """Return a bar whose middle is the sweet point: ``#`` up to it, ``!`` beyond.

    What is above the sweet point has at least one ``!``.
    """
    if ratio is None:
        return " " * width
    filled = round(position(ratio) * width)
    if ratio > 1.0:
        filled = max(filled, width // 2 + 1)
    return "".join("#" if at < width // 2 else "!" for at in range(filled)).ljust(width, ".")


def spark(trend: Iterable[float | None], width: int) -> str:
    """Return the last *width* ratios as a line of blocks; a gap where none was known."""
    shown = [*trend][-width:]
    top = len(_SPARKS) - 1
    return "".join(
        " " if each is None else _SPARKS[round(position(each) * top)] for each in shown
    ).rjust(width)


class Tracker:
    """Makes views from successive pages of one agent.

    :param pattern: a glob; services and workloads whose names do not match it are left out.
    :param sort: ``harm`` (worst first), ``use`` (most CPU first) or ``name``.
    :param service: the name of a service; the others are left out, with workloads that do not harm
        it.
    """

    def __init__(self, pattern: str = "*", sort: str = "harm", service: str | None = None) -> None:
        self.pattern = pattern
        self.sort = sort
        self.service = service
        self._trends: dict[tuple[str, str], deque[float | None]] = {}
        # CPU time by cgroup, and the time of that page.
        self._oncpu: dict[str, float] = {}
        self._time_ns: float | None = None
        self._use: dict[str, float] = {}

    def update(self, page: Mapping[str, Any]) -> View:
        """Return the view of *page*, the data of /statusz."""
        self._update_use(page)
        self._update_trends(records(mapping(page.get("plan")).get("loops")))
        return self.again(page)

    def again(self, page: Mapping[str, Any]) -> View:
        """Return the view of the last *page* once more, with another filter or order."""
        plan = mapping(page.get("plan"))
        loops = records(plan.get("loops"))
        problems = tuple(_problems(page))
        return View(
            head=_head(page, _pause(page)),
            notes=(*paused(page), *_policies(mapping(page.get("policies"))), *problems),
            services=self._services(loops, _origins(plan)),
            workloads=self._workloads(page, plan),
            channels=tuple(_channels(page, plan)),
            decisions=tuple(_decisions(page)),
            parts=tuple(_parts(plan)),
            problems=problems,
        )

    def _update_trends(self, loops: list[Mapping[str, Any]]) -> None:
        keys = [(text(each.get("service")), text(each.get("indicator"))) for each in loops]
        self._trends = {key: self._trends.get(key, deque(maxlen=_TREND)) for key in keys}
        for key, loop in zip(keys, loops, strict=True):
            self._trends[key].append(_ratio(loop))

    def _update_use(self, page: Mapping[str, Any]) -> None:
        time_ns = number(page.get("time_ns"))
        found = {
            text(each.get("path")): oncpu_ns
            for each in records(page.get("workloads"))
            if (oncpu_ns := number(each.get("oncpu_ns"))) is not None
        }
        last_ns, before = self._time_ns, self._oncpu
        if time_ns is None or time_ns == last_ns:
            return
        self._time_ns, self._oncpu, self._use = time_ns, found, {}
        if last_ns is not None and time_ns > last_ns:
            self._use = {
                path: max(0.0, oncpu_ns - before[path]) / (time_ns - last_ns)
                for path, oncpu_ns in found.items()
                if path in before
            }

    def _services(
        self, loops: list[Mapping[str, Any]], origins: Mapping[tuple[str, str], str]
    ) -> tuple[ServiceRow, ...]:
        rows = [self._service(loop, origins) for loop in loops]
        rows = [row for row in rows if fnmatch.fnmatchcase(row.service, self.pattern)]
        if self.service is not None:
            rows = [row for row in rows if row.service == self.service]
        if self.sort == "name":
            return tuple(sorted(rows, key=lambda row: (row.service, row.indicator)))
        return tuple(sorted(rows, key=lambda row: -(row.ratio or 0.0)))

    def _service(
        self, loop: Mapping[str, Any], origins: Mapping[tuple[str, str], str]
    ) -> ServiceRow:
        service, indicator = text(loop.get("service")), text(loop.get("indicator"))
        is_time = loop.get("is_time") is True
        value, sweet_point = number(loop.get("value")), number(loop.get("sweet_point"))
        return ServiceRow(
            service=service,
            indicator=indicator,
            channel=text(loop.get("channel")),
            status=text(loop.get("status")),
            value=_amount(indicator, value, is_time),
            sweet_point=_amount(indicator, sweet_point, is_time),
            origin=origins.get((service, indicator), ""),
            ratio=_ratio(loop),
            trend=tuple(self._trends[service, indicator]),
        )

    def _workloads(
        self, page: Mapping[str, Any], plan: Mapping[str, Any]
    ) -> tuple[WorkloadRow, ...]:
        idle = idle_cgroups(page)
        limited = _limited(page)
        blame, harms = _blame(plan)
        pause = _pause(page)
        rows = []
        for each in records(page.get("workloads")):
            name, path = text(each.get("name")), text(each.get("path"))
            if each.get("qos") != "best-effort" or not fnmatch.fnmatchcase(name, self.pattern):
                continue
            cgroup = str(each.get("cgroup"))
            if self.service is not None and self.service not in harms.get(cgroup, ()):
                continue
            rows.append(
                WorkloadRow(
                    name=name,
                    allowance="paused"
                    if _is_paused(each, pause)
                    else _allowance(path, limited, idle, observed=page.get("mode") == "observe"),
                    use_cpus=self._use.get(path),
                    blame=blame.get(cgroup, 0.0),
                    harms=", ".join(sorted(harms.get(cgroup, ()))),
                )
            )
        if self.sort == "name":
            return tuple(sorted(rows))
        if self.sort == "use":
            return tuple(sorted(rows, key=lambda row: -(row.use_cpus or 0.0)))
        return tuple(sorted(rows, key=lambda row: (-row.blame, -(row.use_cpus or 0.0))))


def _pause(page: Mapping[str, Any]) -> Pause:
    named: dict[str, list[str]] = {}
    for each in records(page.get("pauses")):
        named.setdefault(str(each.get("scope")), []).append(str(each.get("name")))
    services, workloads = named.get("service", ()), named.get("workload", ())
    return Pause("everything" in named, tuple(services), tuple(workloads))


def _is_paused(workload: Mapping[str, Any], pause: Pause) -> bool:
    is_container = workload.get("container_of") is not None
    return pause.covers_workload(str(workload.get("service" if is_container else "name")))


def _head(page: Mapping[str, Any], pause: Pause) -> str:
    tick = mapping(page.get("tick"))
    took, p99 = number(tick.get("duration_ns")), number(tick.get("duration_p99_ns"))
    parts = [text(page.get("mode")) or "not ready"]
    record = mapping(page.get("in_force"))
    jobs = [each for each in records(page.get("workloads")) if each.get("qos") == "best-effort"]
    paused = [each for each in jobs if _is_paused(each, pause)]
    if pause.everything or (paused and len(paused) == len(jobs)):
        parts.append("best-effort is paused")
    elif (cpus := number(record.get("cpus"))) is not None:
        who = "best-effort" if not record.get("unlimited") else "best-effort with a quota"
        verb = "might" if page.get("mode") == "observe" else "may"
        but = f" ({len(paused)} of {count(len(jobs), 'workload')} paused)" if paused else ""
        parts.append(f"{who} {verb} use {format_cpus(cpus)}{but}")
    if took is not None and p99 is not None:
        parts.append(f"tick {format_duration(took)}, p99 {format_duration(p99)}")
    cost = number(mapping(page.get("agent")).get("used_cpus"))
    if cost is not None:
        parts.append(f"agent {format_cpus(cost)}")
    return " | ".join(parts)


def _policies(policies: Mapping[str, Any]) -> Iterator[str]:
    found = [
        f"{text(each.get('policy'))} ({text(each.get('because'), _MOST_TEXT)})"
        for each in records(policies.get("in_force"))
    ]
    if found:
        kept = " (labels as last read)" if policies.get("node_labels") == "kept" else ""
        yield f"policies in force{kept}: {', '.join(found)}"
    if undecided := policies.get("undecided"):
        names = ", ".join(map(text, undecided)) if isinstance(undecided, list) else ""
        yield f"policies wait, the labels of the node are not known: {names}"


def paused(page: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is paused on *page*."""
    for each in records(page.get("pauses")):
        yield f"paused: {text(each.get('scope'))} {text(each.get('name'))}".rstrip()


def _problems(page: Mapping[str, Any]) -> Iterator[str]:
    for source, problem in mapping(page.get("pause_problems")).items():
        yield f"pause of the {text(source)} is ignored: {text(problem)}"
    for probe, problem in mapping(page.get("probes")).items():
        yield f"probe {text(probe)} is off: {text(problem)}"
    if problem := text(page.get("config_problem"), _MOST_TEXT):
        yield f"configuration: {problem}"
    told = {"probes", "profiles" if problem else ""}  # by the notes above
    for each in records(page.get("degraded")):
        if (source := text(each.get("source"))) not in told:
            yield f"{source}: {text(each.get('message'), _MOST_TEXT)}"
    missing = page.get("missing")
    for each in missing[:_MOST_MISSING] if isinstance(missing, list) else ():
        yield f"not there: {text(each, _MOST_TEXT)}"
    if problem := text(mapping(page.get("state_dir")).get("problem"), _MOST_TEXT):
        yield f"state directory: {problem}"
    if mapping(page.get("plan")).get("safe") is True:
        yield "no data: safe state"


def _channels(page: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterator[ChannelRow]:
    knobs = _in_force(page, plan)
    for demand in records(plan.get("demands")):
        channel = text(demand.get("channel"))
        yield ChannelRow(
            channel=channel,
            state=text(demand.get("state")),
            demand=number(demand.get("applied")) or 0.0,
            service=text(demand.get("service")),
            knobs=", ".join(knobs.get(channel, ())),
        )


def _in_force(page: Mapping[str, Any], plan: Mapping[str, Any]) -> Mapping[str, list[str]]:
    """Return the limits that are in force, by the channel that asked for them."""
    settings = {
        (text(each.get("channel")), text(each.get("knob"))): text(each.get("setting"))
        for each in records(plan.get("rungs"))
    }
    record = mapping(page.get("in_force"))
    counts: dict[tuple[str, str], int] = {}
    for each in records(record.get("knobs")):
        if each.get("channel") is not None and each.get("knob") != "cpu.idle":
            place = text(each.get("channel")), text(each.get("knob"))
            counts[place] = counts.get(place, 0) + 1
    found: dict[str, list[str]] = {}
    cpus = number(record.get("cpus"))
    for place, cgroups in counts.items():
        channel, knob = place
        if knob == "cpu.quota" and cpus is not None:
            of = count(cgroups, "cgroup")
            found.setdefault(channel, []).append(f"quota {format_cpus(cpus)} on {of}")
        else:
            found.setdefault(channel, []).append(settings.get(place) or knob)
    return found


def _decisions(page: Mapping[str, Any]) -> Iterator[str]:
    now_ns = number(page.get("time_ns")) or 0.0
    for each in reversed(records(page.get("decisions"))):
        age_s = (now_ns - (number(each.get("time_ns")) or 0.0)) / NS_PER_SEC
        decision = text(each.get("text"), _MOST_TEXT)
        yield f"{age_s:6.0f}s ago  {text(each.get('subject'))}: {decision}"


def _origins(plan: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Return where the sweet points that are learned are from, by service and indicator."""
    origins = {}
    for each in records(plan.get("learned")):
        certainty = min(1.0, max(0.0, number(each.get("certainty")) or 0.0))
        learned = "learned" if each.get("is_sure") is True else f"learning, {certainty:.0%}"
        origins[text(each.get("service")), text(each.get("indicator"))] = learned
    return origins


def _blame(plan: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, set[str]]]:
    """Return the largest part of each best-effort cgroup in a cause, and the services it hurts."""
    blame: dict[str, float] = {}
    harms: dict[str, set[str]] = {}
    for cause in records(plan.get("causes")):
        for culprit in records(cause.get("culprits")):
            cgroup, share = str(culprit.get("cgroup")), number(culprit.get("share")) or 0.0
            blame[cgroup] = max(share, blame.get(cgroup, 0.0))
            harms.setdefault(cgroup, set()).add(text(cause.get("service")))
    return blame, harms


def _limited(page: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]] | None:
    """Return what limits each workload, by its path; ``None``: the page does not say."""
    record = page.get("in_force")
    if not isinstance(record, dict):
        return None
    return {text(each.get("path"), _MOST_TEXT): each for each in records(record.get("limited"))}


def idle_cgroups(page: Mapping[str, Any]) -> frozenset[str]:
    """Return the paths of the cgroups that are idle, as the kernel has it."""
    return frozenset(
        text(each.get("path"), _MOST_TEXT)
        for each in records(page.get("knobs"))
        if (each.get("knob"), each.get("applied")) == ("cpu.idle", "1")
    )


def _parts(plan: Mapping[str, Any]) -> Iterator[PartRow]:
    for cause in records(plan.get("causes")):
        for each in records(cause.get("parts")):
            yield PartRow(
                service=text(cause.get("service")),
                channel=text(cause.get("channel")),
                kind=text(each.get("kind")),
                name=text(each.get("name")),
                share=number(each.get("share")) or 0.0,
            )


def _allowance(
    path: str,
    limited: Mapping[str, Mapping[str, Any]] | None,
    idle: frozenset[str],
    *,
    observed: bool,
) -> str:
    parts = []
    if limited is not None:
        cpus = number(mapping(limited.get(path)).get("cpus"))
        quota = "no quota" if cpus is None else format_cpus(cpus)
        parts.append(f"{quota} if enforced" if observed and cpus else quota)
    if is_below(path, idle):
        parts.append("idle")
    return ", ".join(parts)


def is_below(path: str, cgroups: Iterable[str]) -> bool:
    """Return whether the cgroup *path* is one of *cgroups* or in one of them."""
    return any(f"{path}/".startswith(f"{each}/") for each in cgroups)


def _amount(indicator: str, value: float | None, is_time: bool) -> str:
    if value is None:
        return "-"
    if is_time:
        return format_duration(value)
    if indicator in _RATIOS:
        return f"{100 * value:.3g}%"
    if indicator == "refaults":
        return f"{value:.4g}/s"
    return format_bandwidth(value) if indicator == "net_rate" else f"{value:.4g}"


def _ratio(loop: Mapping[str, Any]) -> float | None:
    value, sweet_point = number(loop.get("value")), number(loop.get("sweet_point"))
    return None if value is None or not sweet_point else max(0.0, value / sweet_point)


def number(value: object) -> float | None:
    """Return a number of a page; ``None`` if it is none, or no sensible one."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1e30 else None


def text(value: object, most: int = _MOST_NAME) -> str:
    """Return a text of a page, printable and at most *most* characters of it."""
    return printable(value[:most]) if isinstance(value, str) else ""


def mapping(value: object) -> Mapping[str, Any]:
    """Return an object of a page, empty if it is none."""
    return value if isinstance(value, dict) else {}


def records(value: object) -> list[Mapping[str, Any]]:
    """Return the objects of a list of a page."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
