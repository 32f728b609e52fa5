# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Choice of the class of a pod: for caches (``resctrl.classes``), for disks (``io.classes``).

The first of these that names a configured class decides: the annotation that containerd reads too,
for classes with ``annotation``; Koordinator's class; later the profile of the pod. A service
without the label of Koordinator's class has LSR if it is Guaranteed, else LS, as in koordlet
(GetPodQoSClassWithDefault). Best-effort work has no class, because the loop moves its limits.
"""

from collections.abc import Sequence
from typing import NamedTuple

from controller.config.sections.io import IoClassConfig
from controller.config.sections.pod_classes import PodClass
from controller.config.sections.resctrl import ResctrlClass
from controller.core.model import QosClass
from controller.workloads.pods.classify import KOORDINATOR_LABEL
from controller.workloads.pods.pod import Pod

__all__ = ("FOR_CACHES", "FOR_DISKS", "NO_CLASSES", "PodClasses", "choose_class")

# What keys of containerd's annotations begin with.
FOR_CACHES = "rdt.resources.beta.kubernetes.io/"
FOR_DISKS = "blockio.resources.beta.kubernetes.io/"


class PodClasses(NamedTuple):
    """The configured classes that a pod may have."""

    resctrl: Sequence[ResctrlClass] = ()
    io: Sequence[IoClassConfig] = ()


NO_CLASSES = PodClasses()


def choose_class(
    pod: Pod, qos: QosClass, classes: Sequence[PodClass], keys: str
) -> tuple[str, str | None]:
    """Return the class of *pod*, empty for none, and the problem with its annotation, if any.

    Without *classes* annotations are the business of the container runtime. *keys* is what those
    for *classes* begin with.
    """
    if not classes:
        return "", None
    key = f"{keys}pod"
    wanted = pod.annotations.get(key, "")
    problem = _problem(key, wanted, qos, classes)
    if any(each.startswith(f"{keys}container.") for each in pod.annotations):
        problem = f"{keys}container.*: only {key} is followed"
    if qos is QosClass.BE:
        return "", problem
    if wanted and problem is None:
        return wanted, None
    default = "" if qos is not QosClass.LS else "LSR" if pod.qos_class == "Guaranteed" else "LS"
    given = pod.labels.get(KOORDINATOR_LABEL) or default
    return next((each.name for each in classes if given in each.koordinator), ""), problem


def _problem(key: str, wanted: str, qos: QosClass, classes: Sequence[PodClass]) -> str | None:
    if not wanted:
        return None
    allowed = [each.name for each in classes if each.annotation]
    if wanted not in allowed:
        names = ", ".join(allowed) or "none"
        return f"{key}={wanted[:64]!r} is no class that pods may choose (these: {names})"
    return f"{key}: best-effort work has no class" if qos is QosClass.BE else None
