# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The ``knobs`` of a profile: how far and how fast, each with a floor in its own unit."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from controller.configmodels import KnobModel
from controller.control.tuning import DEFAULT_LIMITS
from controller.model import Knob
from controller.settings import KnobLimits
from controller.units import UnitError, parse_bytes, parse_cpus, parse_ratio

__all__ = ("read_limits",)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UnitError(f"{text!r} is not a number") from None


class _Floor(NamedTuple):
    """How a knob's floor is written, and the range that makes sense."""

    parse: Callable[[str], float]
    least: str
    most: str


_FLOORS = {
    # The kernel's smallest quota is 1 ms, our longest period 100 ms: 10 mcpu.
    Knob.CPU_QUOTA: _Floor(parse_cpus, "10mcpu", "1024cpu"),
    Knob.LLC_WAYS: _Floor(_number, "1", "64"),
    Knob.MBA: _Floor(parse_ratio, "1%", "100%"),
    Knob.TC_CEILING: _Floor(parse_ratio, "0.1%", "100%"),
    Knob.MEMORY_HIGH: _Floor(parse_bytes, "1MiB", "1TiB"),
    Knob.IO_WEIGHT: _Floor(_number, "1", "100"),
    Knob.IO_MAX: _Floor(parse_ratio, "0.1%", "100%"),
}


def read_limits(
    knob: Knob, model: KnobModel, complain: Callable[[tuple[str, ...], str], None]
) -> KnobLimits:
    """Return the limits that *model* stands for, what it leaves out by default.

    *complain* is told what is wrong, with the place below the knob.
    """
    if knob not in _FLOORS:
        hint = "; see sched_idle" if knob is Knob.SCHED_IDLE else ""
        complain((), f"not a graded knob{hint}")
        return KnobLimits(floor=0.0, squeeze_per_s=1.0, release_step=1.0, release_spacing_ns=0)
    limits = DEFAULT_LIMITS[knob]
    return replace(
        limits,
        floor=limits.floor if model.floor is None else _floor(knob, model.floor, complain),
        squeeze_per_s=_or(model.squeeze, limits.squeeze_per_s),
        release_step=_or(model.release_step, limits.release_step),
        release_spacing_ns=round(_or(model.release_spacing, limits.release_spacing_ns)),
    )


def _floor(knob: Knob, text: str, complain: Callable[[tuple[str, ...], str], None]) -> float:
    parse, least, most = _FLOORS[knob]
    try:
        floor = parse(text)
    except UnitError as error:
        complain(("floor",), str(error))
        return 0.0
    if not parse(least) <= floor <= parse(most):
        complain(("floor",), f"must be between {least} and {most}")
    return floor


def _or(written: float | None, default: float) -> float:
    return default if written is None else written
