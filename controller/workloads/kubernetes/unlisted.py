# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The class of a pod that is known by its cgroup alone, because the API server does not answer.

The path tells the Kubernetes QoS class. That is not enough for BestEffort: kube-proxy and network
agents are BestEffort as well and must not be squeezed. But kubelet makes them the last to be
killed when memory runs out: the processes of a system-node-critical pod have oom_score_adj -997,
those of every other BestEffort pod 1000 (pkg/kubelet/qos/policy.go). Lowering it takes
CAP_SYS_RESOURCE, so no ordinary pod gets out of its class that way.
"""

from collections.abc import Iterator
import itertools
import os
from pathlib import Path
import re

from controller.model import QosClass
from controller.workloads.kubernetes.cgroups import PodCgroup
from controller.workloads.kubernetes.classify import Classified

__all__ = ("classify_by_cgroup",)

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
