# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Values of knobs as people read them: ``0.08cpu`` instead of ``8000 100000 0``."""

from controller.core.knob_values import parse_amount, parse_idle, parse_quota
from controller.core.model import Knob, KnobValue
from controller.core.units import format_bytes, format_cpus

__all__ = ("value_text",)


def value_text(knob: Knob, value: KnobValue) -> str:
    """Return *value* of *knob*; as it is, if it has no simpler form."""
    try:
        if knob is Knob.CPU_QUOTA:
            cpus = parse_quota(value).cpus
            return "unlimited" if cpus is None else format_cpus(cpus)
        if knob is Knob.SCHED_IDLE:
            weight = parse_idle(value)
            return "idle" if weight is None else f"weight {weight}"
        if knob is Knob.CORE_COOKIE:
            return "off" if value == "0" else "on"
        if knob in (Knob.MEMORY_HIGH, Knob.MEMORY_MAX):
            amount = parse_amount(value)
            return "unlimited" if amount == float("inf") else format_bytes(amount)
    except ValueError:
        pass  # a value of another program, in a form of its own
    return str(value)
