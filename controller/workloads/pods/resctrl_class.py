# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Choice of the class of cache ways and memory bandwidth (``resctrl.classes``) of a pod.

The first of these that names a configured class decides: the annotation that containerd reads too,
for classes with ``annotation``; Koordinator's class; later the profile of the pod. A service
without the label of Koordinator's class has LSR if it is Guaranteed, else LS, as in koordlet
(GetPodQoSClassWithDefault). Best-effort work has no class, because the loop moves its limits.
"""

from collections.abc import Sequence

from controller.config.sections.resctrl import ResctrlClass
from controller.core.model import QosClass
from controller.workloads.pods.classify import KOORDINATOR_LABEL
from controller.workloads.pods.pod import Pod

__all__ = ("resctrl_class",)

_FOR_POD = "rdt.resources.beta.kubernetes.io/pod"
_FOR_CONTAINER = "rdt.resources.beta.kubernetes.io/container."


def resctrl_class(
    pod: Pod, qos: QosClass, classes: Sequence[ResctrlClass]
) -> tuple[str, str | None]:
    """Return the class of *pod*, empty for none, and the problem with its annotation, if any.

    Without *classes* annotations are the business of the container runtime.
    """
    if not classes:
        return "", None
    wanted = pod.annotations.get(_FOR_POD, "")
    problem = _problem(wanted, qos, classes)
    if any(key.startswith(_FOR_CONTAINER) for key in pod.annotations):
        problem = f"{_FOR_CONTAINER}*: only {_FOR_POD} is followed"
    if qos is QosClass.BE:
        return "", problem
    if wanted and problem is None:
        return wanted, None
    default = "" if qos is not QosClass.LS else "LSR" if pod.qos_class == "Guaranteed" else "LS"
    given = pod.labels.get(KOORDINATOR_LABEL) or default
    return next((each.name for each in classes if given in each.koordinator), ""), problem


def _problem(wanted: str, qos: QosClass, classes: Sequence[ResctrlClass]) -> str | None:
    if not wanted:
        return None
    allowed = [each.name for each in classes if each.annotation]
    if wanted not in allowed:
        names = ", ".join(allowed) or "none"
        return f"{_FOR_POD}={wanted[:64]!r} is no class that pods may choose (these: {names})"
    return f"{_FOR_POD}: best-effort work has no class" if qos is QosClass.BE else None
