# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The indicators and the knobs, with their defaults."""

from collections.abc import Iterator

from actuators.freezer import CgroupFreeze
from actuators.registry import CGROUP_KNOBS
from controller.config.indicator import format_value, read_indicator
from controller.config.models import IndicatorModel
from controller.core.control.tuning import DEFAULT_LIMITS
from controller.core.model import IndicatorName, Knob
from controller.core.settings import IndicatorSpec
from controller.core.units import format_bytes, format_cpus, format_duration
from tools.reference.markdown import code, table

__all__ = ("indicators", "knobs")

_TICK_NS = 200_000_000
# One of each unit; the first that an indicator accepts shows its unit.
_EXAMPLES = ("learn", "1ms", "1mbit", "10%", "2")
_MEANINGS = {
    IndicatorName.RUNQ_P50: "run-queue wait of the service's tasks, median over waits",
    IndicatorName.RUNQ_P95: "the same, 95th percentile",
    IndicatorName.RUNQ_P99: "the same, 99th percentile",
    IndicatorName.RUNQ_DELAY_P99: "wait that a task would find that arrives at any time, p99",
    IndicatorName.WAIT_RATIO: "part of the time in which a task waits for a CPU",
    IndicatorName.CPI: "cycles per instruction",
    IndicatorName.LLC_MPKI: "misses of the last-level cache per 1,000 instructions",
    IndicatorName.CPU_PER_PACKET: "on-CPU time per packet of the service",
    IndicatorName.NET_RATE: "bytes per second that the service sends and receives",
    IndicatorName.NET_BACKLOG: "queue of the service's tier of a link, as time",
    IndicatorName.NET_DROPS: "part of the tier's packets that is dropped",
    IndicatorName.PSI_CPU: "pressure (PSI some) on cpu",
    IndicatorName.PSI_MEMORY: "pressure (PSI some) on memory",
    IndicatorName.PSI_IO: "pressure (PSI some) on io",
    IndicatorName.SERVICE: "a figure of the service's own",
}
_OBJECTS = {
    Knob.CPU_QUOTA: "CFS quota; of a service its burst only",
    Knob.SCHED_IDLE: "sched-idle, with the weight that the kernel forgets",
    Knob.CORE_COOKIE: "core-scheduling cookies of the tasks (prctl)",
    Knob.RESCTRL_MOUNT: "the mount of /sys/fs/resctrl",
    Knob.RESCTRL_GROUP: "the control group of best-effort work",
    Knob.RESCTRL_MONITOR: "monitoring groups of workloads",
    Knob.LLC_WAYS: "L3 in schemata of the control group",
    Knob.MBA: "MB in schemata of the control group",
    Knob.TC_TREE: "qdiscs and classes of a link and its ifb",
    Knob.TC_MARK: "filters at the host's end of a pod's veth",
    Knob.TC_CEILING: "ceiling of the best-effort class of a link",
    Knob.MEMORY_HIGH: "usage above which memory is reclaimed",
    Knob.IO_WEIGHT: "share of a busy disk",
    Knob.IO_MAX: "bytes per second of a disk",
    Knob.FREEZE: "freezing, by evictions on a host without Kubernetes",
}


def indicators() -> Iterator[str]:
    """Yield the table of indicators."""
    rows = []
    for name in IndicatorName:
        spec, example = _spec(name)
        unit = "learned" if example == "learn" else f"given, as in {example}"
        resolution = format_value(spec, spec.resolution)
        rows.append(
            (
                code(name),
                _MEANINGS[name],
                spec.channel if name is not IndicatorName.SERVICE else "the worst one",
                unit,
                f"{spec.tolerance:g}",
                resolution if name is not IndicatorName.SERVICE else "1 % of the sweet point",
                format_duration(spec.window_ns),
                str(spec.min_samples),
            )
        )
    yield from table(
        (
            *("indicator", "meaning", "channel", "sweet point", "tolerance", "resolution"),
            *("window", "min_samples"),
        ),
        rows,
    )


def _spec(name: IndicatorName) -> tuple[IndicatorSpec, str]:
    for example in _EXAMPLES:
        problems: list[str] = []
        model = IndicatorModel(sweet_point=example)
        spec = read_indicator(name, model, _TICK_NS, lambda _, text: problems.append(text))  # noqa: B023
        if spec is not None and not problems:
            return spec, example
    raise ValueError(f"{name}: no example has its unit")


def knobs() -> Iterator[str]:
    """Yield the table of knobs."""
    files = {each.knob: each.files for each in (*CGROUP_KNOBS, CgroupFreeze)}
    rows = []
    for knob in Knob:
        limits = DEFAULT_LIMITS.get(knob)
        of = files.get(knob, {})
        where = ", ".join(f"{version}: {code(name)}" for version, name in of.items())
        graded = ("", "", "")
        if limits is not None:
            release = format_duration(limits.release_spacing_ns)
            graded = (
                _floor(knob, limits.floor),
                f"{limits.squeeze_per_s:g}/s",
                f"{limits.release_step:g} every {release}",
            )
        rows.append((code(knob), _OBJECTS[knob], where, *graded))
    yield "Floor, squeeze and release are in units of demand, and of graded knobs only.\n"
    yield from table(("knob", "object", "file", "floor", "squeeze", "release"), rows)


def _floor(knob: Knob, floor: float) -> str:
    if knob is Knob.CPU_QUOTA:
        return format_cpus(floor)
    if knob is Knob.MEMORY_HIGH:
        return format_bytes(floor)
    return f"{floor:g}" if floor >= 1 else f"{floor:.0%}"
