# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The agent on a node: valid changes of a ConfigMap's profiles are applied at run time."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.agent import AgentRun
from tests.kube.client import Json
from tests.kube.cluster import Cluster
from tests.kube.kubelet import Kubelet
from tests.kube.site import NodeSite
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kube, pytest.mark.kernel]

NAME = "tuning"


def profile(name: str, milliseconds: int) -> dict[str, str]:
    text = f"name: {name}\nindicators: {{runq_p99: {{sweet_point: {milliseconds}ms}}}}\n"
    return {f"{name}.yaml": text}


@pytest.fixture
def site(cluster: Cluster, namespace: str, kubelet: Kubelet, tmp_path: Path) -> Iterator[NodeSite]:
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": [NAME],
            "verbs": ["list", "watch"],
        },
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
    ]
    cluster.grant(namespace, "default", rules)
    yield NodeSite(cluster, kubelet, tmp_path, cluster.client(namespace, "default"))


def test_profiles_change_while_the_agent_runs(
    cluster: Cluster, namespace: str, site: NodeSite
) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    rule = f"{{profile: gold, namespace: {namespace}, labels: {{tier: front}}}}"
    site.write(
        mode="observe",
        kubernetes=f"  profiles: {{config_map: {NAME}, namespace: {namespace}, rules: [{rule}]}}\n",
    )
    labels = {"tier": "front", "team": "a"}
    made = cluster.make_pod(
        namespace, "web", node=site.kubelet.node, qos="Burstable", labels=labels
    )
    pod = site.kubelet.start(made)

    def profile_of() -> str | None:
        found = site.workload(agent, pod)
        return None if found is None else found["profile"]

    def events_of(reason: str) -> list[Json]:
        events = cluster.admin.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
        return [event for event in events["items"] if event["reason"] == reason]

    with AgentRun(site) as agent:
        agent.ready()
        eventually("the pod", lambda: profile_of() == "default")
        eventually("an Event about the missing ConfigMap", lambda: events_of("ProfilesMissing"))
        problem = agent.status()["cluster"]["label_problems"][f"{namespace}/web"]
        assert problem == "profile rule 1: no profile has the name 'gold'"
        (event,) = eventually("an Event at the pod", lambda: events_of("LabelIgnored"))
        assert (event["regarding"]["name"], event["note"]) == ("web", problem)

        body = {"metadata": {"name": NAME}, "data": profile("gold", 3)}
        uid = cluster.admin.create(path, body)["metadata"]["uid"]
        eventually("the profile", lambda: profile_of() == "gold")
        (event,) = eventually("the Event", lambda: events_of("ProfilesApplied"))
        assert (event["regarding"]["uid"], event["note"]) == (uid, "profiles in force: gold")
        assert _points(agent) == {3e6}

        bad = {"data": profile("gold", 4) | {"bad.yaml": "name: bad\n"}}
        cluster.admin.patch(f"{path}/{NAME}", bad)
        (event,) = eventually(
            "an Event about the invalid change", lambda: events_of("ProfilesRefused")
        )
        assert "bad.yaml:1: indicators: is missing" in event["note"]
        assert (profile_of(), _points(agent)) == ("gold", {3e6})
        reloads = {("applied",): 1.0, ("failed",): 1.0, ("missing",): 1.0}
        name = "sweetpoint_kube_profiles_reload_total"
        eventually("the reloads", lambda: agent.series(name) == reloads)

        cluster.admin.patch(f"{path}/{NAME}", {"data": {"bad.yaml": None}})
        eventually("the new sweet point", lambda: _points(agent) == {4e6})
        cluster.admin.patch(f"{path}/{NAME}", {"data": {"gold.yaml": None}})
        eventually("the default profile", lambda: profile_of() == "default")
        assert agent.status()["tick"]["failed"] == 0


def _points(agent: AgentRun) -> set[float]:
    loops = agent.status()["plan"]["loops"]
    return {loop["sweet_point"] for loop in loops if loop["indicator"] == "runq_p99"}
