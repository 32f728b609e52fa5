# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Pods, and what the agent knows of them; empty on hosts without Kubernetes."""

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from tools.dashboard.panels import NODE, graph, rate, series, states

__all__ = ("pods",)

_NODE = "{{instance}}"
_CPU = 'resource=~".*cpu"'
_MEMORY = 'resource=~".*memory"'


def pods() -> list[Builder[Panel]]:
    """The list of pods, how old it is, and what was made of it."""
    return [
        graph(
            "Time since the API server's last word",
            "A quiet node hears at least a bookmark every few minutes. Above ten minutes the list "
            "of pods is stale: new pods are then classed by their cgroup alone.",
            "s",
            (series("kube_cache_age_seconds"), _NODE),
            limit=(600,),
        ),
        graph(
            "Pods by class and by what gave it to them",
            "A label, an annotation, the namespace or the Kubernetes QoS class.",
            "none",
            (
                f"sum by (class, given_by) ({series('kube_workloads')})",
                "{{class}} by {{given_by}}",
            ),
            stacked=True,
        ),
        graph(
            "Pods",
            "listed: on the API server's list of this node. refused: on it, but make no sense. "
            "unlisted: a cgroup is here, but no pod. conflicts: a configured workload has the "
            "pod's cgroup.",
            "none",
            (series("kube_pods"), "{{instance}} listed"),
            (series("kube_refused_pods"), "{{instance}} refused"),
            (series("kube_unlisted_pods"), "{{instance}} unlisted"),
            (series("kube_conflicts"), "{{instance}} conflicts"),
        ),
        graph(
            "Requests to the API server that failed",
            "Per second, by HTTP status; 'unreachable' had no answer at all. 403: the agent's "
            "ClusterRole lacks a right. 429: the server asks for less.",
            "reqps",
            (f"{rate('kube_failed_requests_total')} > 0", "{{instance}} {{result}}"),
        ),
        graph(
            "Offered to best-effort pods: CPU",
            "CPUs that the node offers as an extended resource (line), and what its pods asked for "
            "of it (dashed).",
            "none",
            (f"{series('reclaimable_amount', _CPU)} / 1000", "{{instance}} {{resource}}"),
            (f"{series('reclaimable_granted', _CPU)} / 1000", "{{instance}} {{resource}} granted"),
            dashed="/ granted$/",
        ),
        graph(
            "Offered to best-effort pods: memory",
            "The same in bytes.",
            "bytes",
            (series("reclaimable_amount", _MEMORY), "{{instance}} {{resource}}"),
            (series("reclaimable_granted", _MEMORY), "{{instance}} {{resource}} granted"),
            dashed="/ granted$/",
        ),
        states(
            "Can it be offered?",
            "stale: nothing is offered for want of fresh data. foreign: somebody else offers the "
            "resource on this node, so it is left alone.",
            (
                f"max by ({NODE}, resource) ({series('reclaimable_foreign')} * 2 == 2 or "
                f"{series('reclaimable_stale')})",
                "{{instance}} {{resource}}",
            ),
            (("offered", "green"), ("stale", "orange"), ("foreign", "#8e8e8e")),
        ),
        states(
            "Profiles of the ConfigMap",
            "refused: what the ConfigMap says now is not in force; its Events say why.",
            (series("kube_profiles_problem"), _NODE),
            (("in force", "green"), ("refused", "red")),
        ),
        graph(
            "Knobs left to others",
            "1 for each knob that koordlet or katalyst-agent already owns on the node, with the "
            "reason. Two owners of one knob would protect nobody.",
            "none",
            (series("kube_left_knob"), "{{instance}} {{knob}}: {{reason}}"),
        ),
        graph(
            "Pods whose labels are not believed",
            "1 for each, with the reason: labels that contradict each other, a class above what "
            "the pod may have, a profile that does not exist.",
            "none",
            (series("kube_label_problem"), "{{instance}} {{workload}}: {{problem}}"),
        ),
    ]
