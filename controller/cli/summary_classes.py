# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The classes of ``resctrl.classes`` and ``io.classes`` in the output of ``sweetpoint check``."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from controller.config.load import Config
from controller.config.sections.io import IoClassConfig
from controller.config.sections.resctrl import ResctrlClass
from controller.doctor.fact import Fact

__all__ = ("ClassSummary", "class_rows", "summarize_classes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSummary:
    """A class of services or system workloads, of the *section* ``resctrl`` or ``io``.

    ``limits`` are those of the configuration; ``off``: why they have no effect here, or empty.
    """

    section: str
    name: str
    limits: str
    off: str = ""


def summarize_classes(config: Config, facts: Mapping[str, Fact]) -> Iterator[ClassSummary]:
    """Return the classes of *config*; *facts* are the doctor's, by name."""
    for each in config.resctrl.classes:
        off = _why_not(facts.get("resctrl"))
        yield ClassSummary(section="resctrl", name=each.name, limits=_caches(each), off=off)
    for given in config.io_classes:
        off = _why_not(facts.get("io.max, io.weight"))
        yield ClassSummary(section="io", name=given.name, limits=_disks(given), off=off)


def class_rows(classes: tuple[ClassSummary, ...]) -> Iterator[tuple[str, ...]]:
    """Return the rows of a table of *classes*."""
    for each in classes:
        text = f"off: {each.off}" if each.off else ""
        yield each.name, each.section, each.limits, text


def _why_not(fact: Fact | None) -> str:
    return fact.detail if fact is not None and fact.have is False else ""


def _caches(given: ResctrlClass) -> str:
    ways = f"l3 {given.begin_ratio:.0%} to {given.end_ratio:.0%}"
    return f"{ways}, mb {given.bandwidth_ratio:.0%}"


def _disks(given: IoClassConfig) -> str:
    parts = [] if given.weight is None else [f"weight {given.weight}"]
    if given.limits:
        parts.append(f"limits on {', '.join(each.device for each in given.limits)}")
    return ", ".join(parts)
