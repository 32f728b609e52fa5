# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The class of a pod: system, latency-sensitive or best-effort.

A pod with an API object (``classify``). The first rule that applies decides:

1. A pod that runs the node is system, whatever its labels: static pods (known by their mirror pod),
   priorities from 2,000,000,000 on, pods in ``system_namespaces``, and the agent itself.
2. A class in a label or annotation: ``sweetpoint.dev/qos``, else ``koordinator.sh/qosClass`` or
   ``katalyst.kubewharf.io/qos_level``. If the last two contradict each other, neither counts. An
   unknown value is ignored and reported. A label can lower a pod below the class of rule 3. It can
   raise the pod only in ``trusted_namespaces``, because the owner of a pod writes its labels.
3. The Kubernetes QoS class: BestEffort is best-effort, Burstable and Guaranteed are
   latency-sensitive. This is the rule for a pod without labels.

A pod that the API server does not list (``classify_by_cgroup``). Only its cgroup is known:

1. A pod whose id is no UUID is a static pod, which is system: the API server gives only UUIDs. A
   static pod with a UUID is known by its mirror pod alone.
2. A pod that is not below the level of the BestEffort pods is latency-sensitive.
3. A BestEffort pod is best-effort or system. kube-proxy and network agents are BestEffort as well
   and must not be squeezed. kubelet gives the processes of a system-node-critical pod an
   oom_score_adj of -997, and those of every other BestEffort pod 1000 (pkg/kubelet/qos/policy.go).
   Lowering the value takes CAP_SYS_RESOURCE, so an ordinary pod cannot leave its class that way.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
import itertools
import os
from pathlib import Path

from controller.core.model import QosClass
from controller.workloads.pods.cgroups import PodCgroup
from controller.workloads.pods.pod import SYSTEM_PRIORITY, Pod, is_uuid

__all__ = (
    "KOORDINATOR_LABEL",
    "QOS_LABEL",
    "ClassRules",
    "Classified",
    "classify",
    "classify_by_cgroup",
)

QOS_LABEL = "sweetpoint.dev/qos"
KOORDINATOR_LABEL = "koordinator.sh/qosClass"
_KATALYST = "katalyst.kubewharf.io/qos_level"

_OWN_VALUES: Mapping[str, QosClass] = {qos.value: qos for qos in QosClass}
_KOORDINATOR_VALUES: Mapping[str, QosClass] = {
    "LSE": QosClass.LS,
    "LSR": QosClass.LS,
    "LS": QosClass.LS,
    "BE": QosClass.BE,
    "SYSTEM": QosClass.SYSTEM,
}
_KATALYST_VALUES: Mapping[str, QosClass] = {
    "dedicated_cores": QosClass.LS,
    "shared_cores": QosClass.LS,
    "reclaimed_cores": QosClass.BE,
    "system_cores": QosClass.SYSTEM,
}
_RANK = {QosClass.BE: 0, QosClass.LS: 1, QosClass.SYSTEM: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRules:
    """The rules that the administrator sets. ``own_uid`` is the uid of the agent's own pod."""

    system_namespaces: frozenset[str] = frozenset({"kube-system"})
    trusted_namespaces: frozenset[str] = frozenset()
    own_uid: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Classified:
    """The class of a pod, the rule that decided, and the problem with its labels, if any.

    ``given_by`` is the kind of the rule: ``system``, the key of a label or annotation,
    ``kubernetes`` for the QoS class, or ``cgroup`` where only the cgroup of the pod is known.
    """

    qos: QosClass
    rule: str
    given_by: str
    problem: str | None = None


def classify(pod: Pod, rules: ClassRules) -> Classified:
    """Return the class of *pod*, which the API server lists or has listed; see the module."""
    if (rule := _system_rule(pod, rules)) is not None:
        return Classified(qos=QosClass.SYSTEM, rule=rule, given_by="system")
    base = QosClass.BE if pod.qos_class == "BestEffort" else QosClass.LS
    fallback = f"Kubernetes QoS class {pod.qos_class}"
    claim, problem = _claim(pod)
    if claim is None:
        return Classified(qos=base, rule=fallback, given_by="kubernetes", problem=problem)
    label, qos = claim
    if _RANK[qos] > _RANK[base] and pod.namespace not in rules.trusted_namespaces:
        problem = f"{label} would raise it above {fallback}; {pod.namespace} is not trusted to"
        return Classified(qos=base, rule=fallback, given_by="kubernetes", problem=problem)
    return Classified(qos=qos, rule=label, given_by=label.partition("=")[0], problem=problem)


def _system_rule(pod: Pod, rules: ClassRules) -> str | None:
    if pod.mirror:
        return "static pod"
    if pod.priority >= SYSTEM_PRIORITY:
        return f"priority {pod.priority}"
    if rules.own_uid is not None and pod.uid == rules.own_uid:
        return "the agent itself"
    if pod.namespace in rules.system_namespaces:
        return f"namespace {pod.namespace}"
    return None


def _claim(pod: Pod) -> tuple[tuple[str, QosClass] | None, str | None]:
    # (label or annotation as KEY=VALUE, its class), and the problems with all of them.
    problems = []
    claims: list[tuple[str, QosClass]] = []
    for key, value, values in (
        (QOS_LABEL, pod.labels.get(QOS_LABEL), _OWN_VALUES),
        (KOORDINATOR_LABEL, pod.labels.get(KOORDINATOR_LABEL), _KOORDINATOR_VALUES),
        (_KATALYST, pod.annotations.get(_KATALYST), _KATALYST_VALUES),
    ):
        if not value:
            continue
        if value not in values:
            problems.append(f"{key}={value[:64]!r} is none of {', '.join(values)}")
            continue
        claim = f"{key}={value}", values[value]
        if key == QOS_LABEL:
            return claim, None
        claims.append(claim)
    if len({qos for _, qos in claims}) > 1:
        problems.append(f"{' and '.join(label for label, _ in claims)} contradict each other")
        claims = []
    return (claims[0] if claims else None), "; ".join(problems) or None


_GIVEN_BY = "cgroup"
_MAX_PROCESSES = 64
# A pod with access to its cgroup can make many empty ones, and the control thread walks them.
_MAX_CGROUPS = 256
_PROC = Path("/proc")


def classify_by_cgroup(pod: PodCgroup, mount: Path, proc: Path = _PROC) -> Classified | None:
    """Return the class of *pod*, which the API server never listed; see the module.

    ``None``: a BestEffort pod without a process that decides. At most 256 cgroups and 64 processes
    are read.
    """
    if not is_uuid(pod.uid):
        return Classified(qos=QosClass.SYSTEM, rule="static pod", given_by=_GIVEN_BY)
    if pod.qos_class != "BestEffort":
        rule = f"a cgroup of class {pod.qos_class}"
        return Classified(qos=QosClass.LS, rule=rule, given_by=_GIVEN_BY)
    scores = list(_oom_scores(mount / pod.path[1:], proc))
    if any(score > 0 for score in scores):
        rule = "a cgroup of class BestEffort"
        return Classified(qos=QosClass.BE, rule=rule, given_by=_GIVEN_BY)
    # The sandbox, which starts before the containers, has -998 in every pod and decides nothing.
    if len(scores) > 1:
        rule = f"oom_score_adj {max(scores)}"
        return Classified(qos=QosClass.SYSTEM, rule=rule, given_by=_GIVEN_BY)
    return None


def _oom_scores(pod: Path, proc: Path) -> Iterator[int]:
    seen = 0
    for folder, _, _ in itertools.islice(os.walk(pod), _MAX_CGROUPS):
        for pid in _text(Path(folder) / "cgroup.procs").split():
            if seen == _MAX_PROCESSES:
                return
            seen += 1
            if score := _text(proc / pid / "oom_score_adj"):
                yield int(score)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:  # gone, or threaded (EOPNOTSUPP)
        return ""
