# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Panels of pods, capacity and the API server; empty on hosts without Kubernetes."""

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from tools.dashboard.panels import NODE, graph, rate, series, states

__all__ = ("pods",)

_NODE = "{{instance}}"
_CPU = 'resource=~".*cpu"'
_MEMORY = 'resource=~".*memory"'


def pods() -> list[Builder[Panel]]:
    """Return the panels of pods, requests to the API server, capacity and profiles."""
    return [
        graph(
            "Time since the last message of the API server",
            "A watch without changes still gets a bookmark or a new list every two minutes. Above "
            "five minutes the list of pods is out of date: new pods are then classified by their "
            "cgroup alone.",
            "s",
            (series("kube_cache_age_seconds"), _NODE),
            limit=(300,),
        ),
        graph(
            "Pods by class and source of the class",
            "The source of a class is a label, an annotation, the namespace or the Kubernetes QoS "
            "class.",
            "none",
            (
                f"sum by (class, given_by) ({series('kube_workloads')})",
                "{{class}} by {{given_by}}",
            ),
            stacked=True,
        ),
        graph(
            "Pods",
            "listed: in the API server's list for the node. refused: in the list, but invalid. "
            "unlisted: cgroups of pods that are not in the list. conflicts: pods whose cgroup "
            "belongs to a configured workload.",
            "none",
            (series("kube_pods"), "{{instance}} listed"),
            (series("kube_refused_pods"), "{{instance}} refused"),
            (series("kube_unlisted_pods"), "{{instance}} unlisted"),
            (series("kube_conflicts"), "{{instance}} conflicts"),
        ),
        graph(
            "Failed requests to the API server",
            "Per second, by HTTP status; 'unreachable' had no answer. 403: the agent's ClusterRole "
            "lacks a permission. 429: the server limits the rate of requests.",
            "reqps",
            (f"{rate('kube_failed_requests_total')} > 0", "{{instance}} {{result}}"),
        ),
        graph(
            "Offered to best-effort pods: CPU",
            "CPUs that the node offers as an extended resource (line), the sum of its pods' "
            "requests for the resource (dashed), and the expected use by all other work.",
            "none",
            (f"{series('reclaimable_amount', _CPU)} / 1000", "{{instance}} {{resource}}"),
            (f"{series('reclaimable_expected_use', _CPU)} / 1000", "{{instance}} expected"),
            (f"{series('reclaimable_granted', _CPU)} / 1000", "{{instance}} {{resource}} granted"),
            dashed="/ granted$/",
        ),
        graph(
            "Offered to best-effort pods: memory",
            "Bytes that the node offers as an extended resource (line), and the sum of its pods' "
            "requests for the resource (dashed).",
            "bytes",
            (series("reclaimable_amount", _MEMORY), "{{instance}} {{resource}}"),
            (series("reclaimable_granted", _MEMORY), "{{instance}} {{resource}} granted"),
            dashed="/ granted$/",
        ),
        states(
            "State of the offered resources",
            "stale: nothing is offered because the data are too old. foreign: another program "
            "offers the resource on the node, so the agent does not change it.",
            (
                f"max by ({NODE}, resource) ({series('reclaimable_foreign')} * 2 == 2 or "
                f"{series('reclaimable_stale')})",
                "{{instance}} {{resource}}",
            ),
            (("offered", "green"), ("stale", "orange"), ("foreign", "#8e8e8e")),
        ),
        states(
            "Profiles of the ConfigMap",
            "refused: the present content of the ConfigMap is not in use; its Events have the "
            "reason.",
            (series("kube_profiles_problem"), _NODE),
            (("in use", "green"), ("refused", "red")),
        ),
        graph(
            "Knobs left to other agents",
            "Knobs that koordlet or katalyst-agent manages on the node, with the reason; the value "
            "is 1. The agent does not write them.",
            "none",
            (series("kube_left_knob"), "{{instance}} {{knob}}: {{reason}}"),
        ),
        graph(
            "Pods with refused labels",
            "With the reason: labels that contradict each other, a class above the one that the "
            "pod may have, a profile that does not exist; the value is 1.",
            "none",
            (series("kube_label_problem"), "{{instance}} {{workload}}: {{problem}}"),
        ),
    ]
