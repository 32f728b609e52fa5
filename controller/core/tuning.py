# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Default gains of the loops and default limits of the knobs, with their derivation."""

from collections.abc import Iterable, Mapping

from controller.core.model import Knob
from controller.core.settings import Gains, KnobLimits
from controller.core.units import MIB, NS_PER_SEC

__all__ = ("DEFAULT_LIMITS", "auto_gains", "tightest_limits")

# Gain of the plant, deviation per unit of demand. Latency grows about in proportion to the quota (a
# service waits for the burst at the start of a period), the quota runs over about four octaves from
# ceiling to floor, and a deviation of 1 is one octave at a tolerance of 2.
_PLANT_GAIN = 4.0

# The closed loop's time constant in dead times. SIMC recommends 1, which leaves a gain margin of
# about 3; the plant's gain may be wrong by a factor of 4.
_TIGHTNESS = 1.5


def _limits(floor: float, squeeze: float, release: float, spacing_ns: int) -> KnobLimits:
    return KnobLimits(
        floor=floor, squeeze_per_s=squeeze, release_step=release, release_spacing_ns=spacing_ns
    )


# Units of the floors: CPUs, ways, a share of full bandwidth, a share of the link, bytes, a weight,
# a share of the disk. A knob that moves in fine steps is released in fine, frequent steps. A knob
# with few settings is released setting by setting (``StepSelector``), far enough apart to observe
# the effect of each. Memory above its limit is reclaimed while its owner waits, so it is squeezed
# slowly.
DEFAULT_LIMITS: Mapping[Knob, KnobLimits] = {
    Knob.CPU_QUOTA: _limits(0.05, 2.0, 0.01, NS_PER_SEC // 2),
    Knob.LLC_WAYS: _limits(2.0, 2.0, 0.35, 20 * NS_PER_SEC),
    Knob.MBA: _limits(0.1, 2.0, 0.35, 20 * NS_PER_SEC),
    Knob.TC_CEILING: _limits(0.02, 2.0, 0.01, NS_PER_SEC // 2),
    Knob.MEMORY_HIGH: _limits(64.0 * MIB, 0.1, 0.02, 5 * NS_PER_SEC),
    Knob.IO_WEIGHT: _limits(1.0, 2.0, 0.35, 20 * NS_PER_SEC),
    Knob.IO_MAX: _limits(0.02, 2.0, 0.01, NS_PER_SEC // 2),
}


def auto_gains(window_ns: int, tick_ns: int, filter_ns: int | None = None) -> Gains:
    """Return PI gains for an indicator over *window_ns*, read every *tick_ns* (SIMC rules).

    The dead time is one window (the old waits must leave the window before a percentile falls) and
    one tick. The lag is the low-pass behind the window, *filter_ns*, by default two windows. There
    is no derivative part: on the noise of a percentile it costs more than it brings.
    """
    dead_time_s = (window_ns + tick_ns) / NS_PER_SEC
    lag_s = (2 * window_ns if filter_ns is None else filter_ns) / NS_PER_SEC
    closed_s = _TIGHTNESS * dead_time_s
    lag_s = max(lag_s, 0.25 * dead_time_s)
    kp = lag_s / (_PLANT_GAIN * (closed_s + dead_time_s))
    return Gains(kp=kp, ti_s=min(lag_s, 4 * (closed_s + dead_time_s)), td_s=0.0)


def tightest_limits(all_limits: Iterable[KnobLimits], default: KnobLimits) -> KnobLimits:
    """Return the limits that satisfy several services at once; *default* if there are none.

    That is the highest floor (which best-effort work was promised), the fastest squeeze and the
    slowest release.
    """
    limits = tuple(all_limits) or (default,)
    return KnobLimits(
        floor=max(each.floor for each in limits),
        squeeze_per_s=max(each.squeeze_per_s for each in limits),
        release_step=min(each.release_step for each in limits),
        release_spacing_ns=max(each.release_spacing_ns for each in limits),
    )
