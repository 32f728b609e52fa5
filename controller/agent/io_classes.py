# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The classes of ``io.classes`` on this host: numbers of disks, and what has no effect here."""

from collections.abc import Iterable
import logging

from controller.config.sections.io import IoClassConfig
from controller.core.settings import IoClass
from controller.host.disks import find_limits
from controller.host.facts import CgroupLayout

__all__ = ("resolve_io_classes",)

_log = logging.getLogger(__name__)


def resolve_io_classes(
    classes: Iterable[IoClassConfig], layout: CgroupLayout, *, weighs: bool
) -> dict[str, IoClass]:
    """Return the classes by name, without what has no effect, which is logged.

    *weighs*: some disk follows io.weight, or may.
    """
    missing = _missing(layout) if classes else ""
    found = {each.name: _resolve(each, missing, weighs=weighs) for each in classes}
    for text in dict.fromkeys(each.problem for each in found.values() if each.problem):
        names = ", ".join(name for name, each in found.items() if each.problem == text)
        _log.warning("io.classes: %s: %s", names, text)
    return found


def _missing(layout: CgroupLayout) -> str:
    if layout.version == "v1":
        return "no effect: cgroup v1 has no io.weight and io.max"
    controllers = (layout.mount / "cgroup.controllers").read_text(encoding="ascii").split()
    return "" if "io" in controllers else f"no effect: {layout.mount} has no io controller"


def _resolve(given: IoClassConfig, missing: str, *, weighs: bool) -> IoClass:
    if missing:
        return IoClass(problem=missing)
    value, problems = find_limits(given.limits)
    weight = given.weight
    if weight is not None and not weighs:
        weight = None
        problems.append("weight: no disk follows io.weight (io.cost.qos enables none)")
    return IoClass(weight, value, "; ".join(problems))
