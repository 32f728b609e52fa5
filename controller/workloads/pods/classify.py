# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The class of a pod that is known by its cgroup alone, because the API server does not answer.

The path tells the Kubernetes QoS class. That is not enough for BestEffort: kube-proxy and network
agents are BestEffort as well and must not be squeezed. But kubelet makes them the last to be
killed when memory runs out: the processes of a system-node-critical pod have oom_score_adj -997,
those of every other BestEffort pod 1000 (pkg/kubelet/qos/policy.go). Lowering it takes
CAP_SYS_RESOURCE, so no ordinary pod gets out of its class that way.

PURE: which class a pod has, by whose word, and why.

The first rule stands over every label: what runs the node is system. Then the labels of three
dialects, then the Kubernetes QoS class. A label may lower a pod below its Kubernetes QoS class;
raising it counts only in namespaces that the administrator trusts, because a pod's owner writes
its labels.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
import itertools
import os
from pathlib import Path
import re

from controller.core.model import QosClass
from controller.workloads.pods.cgroups import PodCgroup
from controller.workloads.pods.pod import Pod

__all__ = (
    "QOS_LABEL",
    "ClassRules",
    "Classified",
    "classify",
    "classify_by_cgroup",
)

QOS_LABEL = "sweetpoint.dev/qos"
_KOORDINATOR = "koordinator.sh/qosClass"
_KATALYST = "katalyst.kubewharf.io/qos_level"
# From here on a priority is reserved for system-critical pods
# (pkg/apis/scheduling.SystemCriticalPriority).
_SYSTEM_PRIORITY = 2_000_000_000

_OWN_WORDS: Mapping[str, QosClass] = {qos.value: qos for qos in QosClass}
_KOORDINATOR_WORDS: Mapping[str, QosClass] = {
    "LSE": QosClass.LS,
    "LSR": QosClass.LS,
    "LS": QosClass.LS,
    "BE": QosClass.BE,
    "SYSTEM": QosClass.SYSTEM,
}
_KATALYST_WORDS: Mapping[str, QosClass] = {
    "dedicated_cores": QosClass.LS,
    "shared_cores": QosClass.LS,
    "reclaimed_cores": QosClass.BE,
    "system_cores": QosClass.SYSTEM,
}
_RANK = {QosClass.BE: 0, QosClass.LS: 1, QosClass.SYSTEM: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRules:
    """The administrator's part. ``own_uid`` is that of the agent's own pod."""

    system_namespaces: frozenset[str] = frozenset({"kube-system"})
    trusted_namespaces: frozenset[str] = frozenset()
    own_uid: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Classified:
    """The class of a pod, the rule that gave it, and what was wrong with its labels.

    ``given_by`` is the rule's kind: ``system``, the key of a label or annotation, ``kubernetes``
    for the QoS class, or ``cgroup`` where nothing but the pod's cgroup is known.
    """

    qos: QosClass
    rule: str
    given_by: str
    problem: str | None = None


def classify(pod: Pod, rules: ClassRules) -> Classified:
    """Return the class of *pod*."""
    if (rule := _system_rule(pod, rules)) is not None:
        return Classified(qos=QosClass.SYSTEM, rule=rule, given_by="system")
    base = QosClass.BE if pod.qos_class == "BestEffort" else QosClass.LS
    fallback = f"Kubernetes QoS class {pod.qos_class}"
    claim, problem = _claim(pod)
    if claim is None:
        return Classified(qos=base, rule=fallback, given_by="kubernetes", problem=problem)
    word, qos = claim
    if _RANK[qos] > _RANK[base] and pod.namespace not in rules.trusted_namespaces:
        problem = f"{word} would raise it above {fallback}; {pod.namespace} is not trusted to"
        return Classified(qos=base, rule=fallback, given_by="kubernetes", problem=problem)
    return Classified(qos=qos, rule=word, given_by=word.partition("=")[0], problem=problem)


def _system_rule(pod: Pod, rules: ClassRules) -> str | None:
    if pod.mirror:
        return "static pod"
    if pod.priority >= _SYSTEM_PRIORITY:
        return f"priority {pod.priority}"
    if rules.own_uid is not None and pod.uid == rules.own_uid:
        return "the agent itself"
    if pod.namespace in rules.system_namespaces:
        return f"namespace {pod.namespace}"
    return None


def _claim(pod: Pod) -> tuple[tuple[str, QosClass] | None, str | None]:
    # What the labels say, and what is wrong with them. Our own word goes before the others';
    # of these, two that disagree cancel each other.
    problems = []
    claims: list[tuple[str, QosClass]] = []
    for key, value, words in (
        (QOS_LABEL, pod.labels.get(QOS_LABEL), _OWN_WORDS),
        (_KOORDINATOR, pod.labels.get(_KOORDINATOR), _KOORDINATOR_WORDS),
        (_KATALYST, pod.annotations.get(_KATALYST), _KATALYST_WORDS),
    ):
        if not value:
            continue
        if value not in words:
            problems.append(f"{key}={value[:64]!r} is none of {', '.join(words)}")
            continue
        claim = f"{key}={value}", words[value]
        if key == QOS_LABEL:
            return claim, None
        claims.append(claim)
    if len({qos for _, qos in claims}) > 1:
        problems.append(f"{' and '.join(word for word, _ in claims)} contradict each other")
        claims = []
    return (claims[0] if claims else None), "; ".join(problems) or None


_GIVEN_BY = "cgroup"
_MANIFEST_HASH = re.compile(r"[0-9a-f]{32}")
_MOST_PROCESSES = 64
# A pod that may make cgroups may make many that are empty, and the control thread looks here.
_MOST_CGROUPS = 256
_PROC = Path("/proc")


def classify_by_cgroup(pod: PodCgroup, mount: Path, proc: Path = _PROC) -> Classified | None:
    """Return the class of *pod*, ``None`` while it has no process by which to tell."""
    if _MANIFEST_HASH.fullmatch(pod.uid):
        return Classified(qos=QosClass.SYSTEM, rule="static pod", given_by=_GIVEN_BY)
    if pod.qos_class != "BestEffort":
        rule = f"a cgroup of class {pod.qos_class}"
        return Classified(qos=QosClass.LS, rule=rule, given_by=_GIVEN_BY)
    scores = list(_oom_scores(mount / pod.path[1:], proc))
    if any(score > 0 for score in scores):
        rule = "a cgroup of class BestEffort"
        return Classified(qos=QosClass.BE, rule=rule, given_by=_GIVEN_BY)
    # The sandbox, which is there before the containers, has -998 in every pod.
    if len(scores) > 1:
        rule = f"oom_score_adj {max(scores)}"
        return Classified(qos=QosClass.SYSTEM, rule=rule, given_by=_GIVEN_BY)
    return None


def _oom_scores(pod: Path, proc: Path) -> Iterator[int]:
    seen = 0
    for folder, _, _ in itertools.islice(os.walk(pod), _MOST_CGROUPS):
        for pid in _text(Path(folder) / "cgroup.procs").split():
            if seen == _MOST_PROCESSES:
                return
            seen += 1
            if score := _text(proc / pid / "oom_score_adj"):
                yield int(score)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:  # gone, or threaded: EOPNOTSUPP
        return ""
