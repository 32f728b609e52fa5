# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a configuration means on this host: the output of ``sweetpoint check``.

Everything is read without a probe and without a right beyond that of reading ``/proc`` and
``/sys``; what the kernel accepts is tried by ``sweetpoint doctor`` only.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from controller.cli.explain_text import lasted
from controller.cli.policy_text import PoliciesSummary, policy_lines, summarize_policies
from controller.cli.summary_classes import ClassSummary, class_rows, summarize_classes
from controller.config.indicator import format_value
from controller.config.load import Config
from controller.config.sections.trial import TrialConfig
from controller.config.workload_rules import is_pattern
from controller.core.model import Channel, IndicatorName, Knob, Workload
from controller.core.settings import CoreMode, IndicatorSpec, Profile
from controller.core.units import count, format_duration
from controller.doctor.fact import Fact
from controller.doctor.knobs import find_knobs
from controller.doctor.optional import find_optional
from controller.doctor.required import find_required
from controller.host.facts import CgroupLayout, HostError, find_cgroup_layout
from controller.host.names import printable
from controller.workloads import static
from controller.workloads.pods.cgroups import PodCgroup, PodCgroups

__all__ = ("Summary", "render", "summarize")

# The doctor's fact about each knob, and the channel that moves it.
_KNOBS: tuple[tuple[tuple[Knob, ...], str, Channel], ...] = (
    ((Knob.SCHED_IDLE,), "sched-idle", Channel.CPU),
    ((Knob.CPU_QUOTA,), "cpu quota", Channel.CPU),
    ((Knob.CORE_COOKIE,), "core scheduling", Channel.CACHE),
    ((Knob.LLC_WAYS, Knob.MBA), "resctrl", Channel.CACHE),
    ((Knob.TC_CEILING,), "links", Channel.NETWORK),
    ((Knob.MEMORY_MAX,), "memory limit", Channel.MEMORY),
    ((Knob.MEMORY_HIGH,), "memory.high", Channel.MEMORY),
    ((Knob.IO_WEIGHT, Knob.IO_MAX), "io.max, io.weight", Channel.IO),
)
# Of nodes of Kubernetes; no loop moves it.
_ISOLATION = ((Knob.CPUSET,), "cpuset.cpus", Channel.CPU)
_STANDING = (Knob.MEMORY_MAX, Knob.CPUSET)
_LINK_INDICATORS = (IndicatorName.NET_BACKLOG, IndicatorName.NET_DROPS)
_PRESSURE = (IndicatorName.PSI_CPU, IndicatorName.PSI_MEMORY, IndicatorName.PSI_IO)
_COUNTED: Mapping[IndicatorName, tuple[str, ...]] = {
    IndicatorName.CPI: ("cycles", "instructions"),
    IndicatorName.LLC_MPKI: ("llc_misses", "instructions"),
}
# Lines of a list before it is cut, so that the whole text of a small host fits on a screen.
_MOST_LINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSummary:
    """An entry of ``workloads`` and the cgroups that it names now; ``problem`` may be empty."""

    name: str
    cgroup: str
    qos: str
    service: str
    profile: str
    found: tuple[str, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndicatorSummary:
    """A sweet point of a profile, with its unit; ``off``: why it has no source here, or empty."""

    indicator: str
    sweet_point: str
    channel: str
    off: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSummary:
    """A profile that a service has, or can have; ``services`` are those of the file."""

    name: str
    services: tuple[str, ...]
    indicators: tuple[IndicatorSummary, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobSummary:
    """A knob, or several that the host has together; ``have`` is ``None`` if it is not known.

    ``off``: why it is not used, by the host, the configuration or the profiles; empty if it is.
    ``now``: what it follows now, empty where the loops decide.
    """

    knob: str
    channel: str
    have: bool | None
    off: str = ""
    now: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsSummary:
    """The pods of this node: the node's name, the cgroups with pods, and their number now."""

    node: str
    roots: tuple[str, ...]
    pods: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A valid configuration on this host.

    ``left_out`` is a text per cgroup that a rule matches and that cannot be a workload.
    ``trials`` says what the agent tries by itself; empty: nothing.
    ``blocked`` maps each mode to what this host lacks for it, probes not tried.
    """

    file: str
    mode: str
    tick: str
    pages: str
    hierarchy: str
    policies: PoliciesSummary
    trials: str
    workloads: tuple[RuleSummary, ...]
    left_out: tuple[str, ...]
    pods: PodsSummary | None
    profiles: tuple[ProfileSummary, ...]
    knobs: tuple[KnobSummary, ...]
    classes: tuple[ClassSummary, ...]
    blocked: Mapping[str, tuple[str, ...]]


def summarize(config: Config, mountinfo: str | None = None) -> Summary:
    """Compare *config* with this host; *mountinfo* is that of ``find_cgroup_layout``."""
    required = find_required()
    facts = {fact.name: fact for fact in (*required, *find_optional(), *find_knobs())}
    try:
        layout: CgroupLayout | None = find_cgroup_layout(mountinfo)
        hierarchy = f"cgroup {layout.version} at {layout.mount}" if layout else ""
    except (HostError, OSError) as error:
        layout, hierarchy = None, str(error)
    workloads: tuple[Workload, ...] = ()
    left_out: tuple[str, ...] = ()
    if layout is not None:
        workloads, left_out, _ = static.scan(layout, config.workloads)
    profiles = tuple(_profiles(config, facts))
    return Summary(
        file=str(config.path),
        mode=str(config.settings.mode),
        tick=format_duration(config.settings.tick_ns),
        pages="off" if config.http is None else "http://{}:{}".format(*config.http),
        hierarchy=hierarchy,
        policies=summarize_policies(config.in_force),
        trials=_trials(config.trial),
        workloads=tuple(_rules(config, workloads, left_out)),
        left_out=left_out,
        pods=_pods(config, layout),
        profiles=profiles,
        knobs=tuple(_knobs(config, profiles, facts)),
        classes=tuple(summarize_classes(config, facts)),
        blocked={
            mode: tuple(f.name for f in required if f.have is False and mode in f.modes)
            for mode in ("observe", "enforce")
        },
    )


def _trials(config: TrialConfig) -> str:
    if not config.enabled:
        return ""
    what = f"with and without policy {config.policy}" if config.policy else "enforcing and paused"
    published = ", published for a rollout" if config.publish else ""
    return f"{what}, {lasted(config.total_ns)} each{published}"


def _rules(
    config: Config, workloads: tuple[Workload, ...], left_out: tuple[str, ...]
) -> Iterator[RuleSummary]:
    found: dict[str, list[str]] = {}
    for workload in workloads:
        found.setdefault(workload.name.partition(":")[0], []).append(workload.path)
    for rule in config.workloads:
        paths = tuple(found.get(rule.name, ()))
        omitted = [text for text in left_out if text.startswith(f"{rule.origin}: ")]
        problem = f"{len(omitted)} left out" if omitted else ""
        if not paths and not omitted:
            problem = "none now" if is_pattern(rule.cgroup) else "does not exist now"
        yield RuleSummary(
            name=rule.name,
            cgroup=rule.cgroup,
            qos=str(rule.qos),
            service=rule.service,
            profile=rule.profile,
            found=paths,
            problem=problem,
        )


def _pods(config: Config, layout: CgroupLayout | None) -> PodsSummary | None:
    if config.kubernetes is None:
        return None
    pods: Mapping[str, tuple[PodCgroup, ...]] = {}
    if layout is not None:
        pods = PodCgroups(layout.mount, config.kubernetes.cgroup_roots).scan(0)
    return PodsSummary(
        node=config.kubernetes.node,
        roots=tuple(pods),
        pods=sum(len(each) for each in pods.values()),
    )


def _profiles(config: Config, facts: Mapping[str, Fact]) -> Iterator[ProfileSummary]:
    services: dict[str, dict[str, None]] = {}
    for rule in config.workloads:
        if rule.profile:
            services.setdefault(rule.profile, {})[rule.service] = None
    # A pod can select any profile.
    names = config.settings.profiles if config.kubernetes else services
    for name in sorted(names):
        profile = config.settings.profiles[name]
        of_file = tuple(services.get(name, ()))
        yield ProfileSummary(
            name=name,
            services=of_file,
            indicators=tuple(
                IndicatorSummary(
                    indicator=str(spec.name),
                    sweet_point=_sweet_point(spec),
                    channel="by evidence"
                    if spec.name is IndicatorName.SERVICE
                    else str(spec.channel),
                    off=_indicator_off(spec, profile, of_file, config, facts),
                )
                for spec in profile.indicators
            ),
        )


def _sweet_point(spec: IndicatorSpec) -> str:
    by_load = [
        f"{format_value(spec, each.sweet_point)} above load {each.above:g}" for each in spec.bins
    ]
    given = [] if spec.sweet_point is None else [format_value(spec, spec.sweet_point)]
    if spec.learn:
        return f"{given[0] if given else 'none'} until learned"
    if spec.objective is not None:
        return f"{given[0]} for an objective of {format_value(spec, spec.objective)}"
    return ", ".join([*given, *by_load])


def _indicator_off(
    spec: IndicatorSpec,
    profile: Profile,
    services: tuple[str, ...],
    config: Config,
    facts: Mapping[str, Fact],
) -> str:
    if spec.channel not in profile.channels:
        return f"the profile's channels are without {spec.channel}"
    if spec.name in _LINK_INDICATORS and config.network is None:
        return "no section network"
    if spec.name in _PRESSURE and "per cgroup" not in facts["PSI"].detail:
        return f"PSI: {facts['PSI'].detail}"
    sources = {config.counters[each] for each in _COUNTED.get(spec.name, ())}
    if "off" in sources:
        return "off in the section counters"
    if "auto" in sources and facts["hardware PMU"].have is False:
        return "no hardware PMU"
    if spec.name is IndicatorName.SERVICE:
        level = config.service_level
        fed = set() if level is None else {source.service for source in level.sources}
        if level is not None and profile.name in level.pods:
            return ""
        if without := sorted(set(services) - fed):
            return f"no source in service_level for {', '.join(without)}"
    return ""


def _knobs(
    config: Config, profiles: tuple[ProfileSummary, ...], facts: Mapping[str, Fact]
) -> Iterator[KnobSummary]:
    in_use = {each.channel for profile in profiles for each in profile.indicators if not each.off}
    if "by evidence" in in_use:
        in_use.update(map(str, Channel))
    isolation = () if config.kubernetes is None else (_ISOLATION,)
    for knobs, name, channel in (*_KNOBS, *isolation):
        fact = facts.get(name)
        have = None if fact is None else fact.have
        off = "" if have or fact is None else fact.detail
        if not off:
            off = _turned_off(knobs[0], config)
        # Without a sweet point.
        standing = knobs[0] in _STANDING or (
            Knob.SCHED_IDLE in knobs
            and any(config.settings.profiles[each.name].sched_idle for each in profiles)
        )
        if not off and not standing and channel not in in_use:
            off = f"no sweet point for the {channel} channel"
        now = fact.detail if fact is not None and knobs[0] is Knob.CPUSET and not off else ""
        yield KnobSummary(knob=", ".join(knobs), channel=str(channel), have=have, off=off, now=now)


def _turned_off(knob: Knob, config: Config) -> str:
    """Return why the configuration does not let *knob* be used, or an empty text."""
    if knob is Knob.CORE_COOKIE and config.settings.core.mode is CoreMode.OFF:
        return "core_scheduling: mode is off"
    if knob is Knob.LLC_WAYS and not config.resctrl.manage:
        return "resctrl: manage is false"
    if knob is Knob.MEMORY_MAX and config.settings.memory is None:
        return "memory: guard is false"
    if knob is Knob.TC_CEILING and config.network is None:
        return "no section network"
    kubernetes = config.kubernetes
    if knob is Knob.CPUSET and kubernetes is not None and not kubernetes.static_isolation:
        return "kubernetes: static_isolation is false"
    return ""


def render(summary: Summary) -> str:
    """Return *summary* as text for a terminal of 80 columns."""
    lines = [
        f"{summary.file}: valid",
        f"mode {summary.mode}, tick {summary.tick}, pages {summary.pages}",
        summary.hierarchy,
    ]
    if policies := [*policy_lines(summary.policies)]:
        # In the same number of lines, for the text to fit on a screen.
        lines[1:] = [", ".join(lines[1:]), *policies]
    if summary.trials:
        lines += [f"trials begin by themselves: {summary.trials}"]
    if summary.pods is not None:
        pods = summary.pods
        where = ", ".join(pods.roots) or "no kubepods cgroup found"
        lines += [f"Pods of node {pods.node}: {pods.pods} now ({where})"]
    if summary.workloads:
        lines += ["Workloads", *_table(map(_rule_row, summary.workloads))]
        lines += [f"  left out: {printable(text)}" for text in summary.left_out[:3]]
    lines += ["Sweet points", *_table(_indicator_rows(summary))]
    lines += ["Knobs of best-effort work on this host", *_table(map(_knob_row, summary.knobs))]
    if summary.classes:
        lines += ["Classes of other workloads", *_table(class_rows(summary.classes))]
    for missing in dict.fromkeys(summary.blocked.values()):
        modes = [mode for mode, each in summary.blocked.items() if each == missing]
        text = f"missing {', '.join(missing)}" if missing else "nothing is missing"
        lines.append(f"{' and '.join(modes)}: {text}")
    lines.append("'sweetpoint doctor' loads the probes and says how to get what is missing")
    return "\n".join(lines)


def _rule_row(rule: RuleSummary) -> tuple[str, ...]:
    found = count(len(rule.found), "cgroup")
    now = ", ".join(filter(None, (found if rule.found else "", rule.problem)))
    return rule.name, rule.qos, rule.profile or "-", rule.cgroup, now


def _indicator_rows(summary: Summary) -> Iterator[tuple[str, ...]]:
    for profile in summary.profiles:
        for each in profile.indicators:
            text = f"off: {each.off}" if each.off else ""
            yield profile.name, each.indicator, each.sweet_point, each.channel, text


def _knob_row(knob: KnobSummary) -> tuple[str, ...]:
    state = "used" if knob.have else "unknown"
    return knob.knob, knob.channel, "off" if knob.off else state, knob.off or knob.now


def _table(rows: Iterator[tuple[str, ...]]) -> list[str]:
    """Return *rows* as aligned lines; the last column is not padded, the list is cut."""
    listed = [[printable(cell) for cell in row] for row in rows]  # names of cgroups are foreign
    widths = [max(map(len, column)) for column in zip(*listed, strict=True)]
    lines = []
    for row in listed[:_MOST_LINES]:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  " + "  ".join(cells).rstrip())
    if len(listed) > _MOST_LINES:
        lines.append(f"  ... and {len(listed) - _MOST_LINES} more (--json lists all)")
    return lines
