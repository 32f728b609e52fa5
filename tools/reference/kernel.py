# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The indicators and the knobs, with their defaults."""

from collections.abc import Iterator

from actuators.freezer import CgroupFreeze
from actuators.registry import CGROUP_KNOBS
from controller.config.indicator import format_value, read_indicator
from controller.config.models import IndicatorModel
from controller.core.model import IndicatorName, Knob
from controller.core.settings import IndicatorSpec
from controller.core.tuning import DEFAULT_LIMITS
from controller.core.units import format_bytes, format_cpus, format_duration
from tools.reference.markdown import code, table

__all__ = ("indicators", "knobs")

_TICK_NS = 200_000_000
# One of each unit; the first that an indicator accepts shows its unit.
_EXAMPLES = ("learn", "1ms", "1mbit", "10%", "2")


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
                name.meaning,
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
        rows.append((code(knob), knob.meaning, where, *graded))
    yield "Floor, squeeze and release are in units of demand, and of graded knobs only.\n"
    yield from table(("knob", "meaning", "file", "floor", "squeeze", "release"), rows)


def _floor(knob: Knob, floor: float) -> str:
    if knob is Knob.CPU_QUOTA:
        return format_cpus(floor)
    if knob is Knob.MEMORY_HIGH:
        return format_bytes(floor)
    return f"{floor:g}" if floor >= 1 else f"{floor:.0%}"
