# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A rollout at a real API server, with the rights that the chart grants.

Trials are made up; what publishes them is the agent's own code, with the agent's rights.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.cli.trial_publisher import Publisher
from controller.kube.client.api import Api
from controller.kube.client.errors import ApiError, ApiUnreachable
from controller.kube.client.worker import Worker
from controller.kube.events import Events
from controller.kube.lease import Lease
from controller.kube.node import change_node
from controller.rollout.controller import ROLL_BACK_KEY, Controller
from controller.rollout.loop import Loop
from controller.rollout.state import Phase
from controller.rollout.summary import TRIAL_KEY, encode
from controller.trial.comparison import Comparison
from tests.deploy.chart import render
from tests.kube.client import Json, Refused
from tests.kube.cluster import Cluster
from tests.support.kube.limits import PATIENT
from tests.support.rollout import CANDIDATE, CURRENT, SPEC, pairs_from, tried
from tests.support.waiting import eventually

pytestmark = pytest.mark.kube

ROLLOUT, PROFILES = "sweetpoint-rollout", "sweetpoint-profiles"
BEGIN_S = 1.8e9
POLICIES = "policies: [{name: canary, set: {replace_profiles: {default: fast}}}]\n"
VALUES = {
    "rollout": {
        "enabled": True,
        "spec": {"candidate": "fast", "replaces": "default", "nodes": {"pool": "canary"}},
    },
    "image": {"repository": "sweetpoint"},
}


class Site:
    """Canary nodes, both ConfigMaps, and the chart's identity of the controller."""

    def __init__(self, cluster: Cluster, namespace: str, directory: Path) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.maps = f"/api/v1/namespaces/{namespace}/configmaps"
        self.pool = cluster.new_name("pool")
        self.nodes = [cluster.new_name("canary") for _ in range(5)]
        for node in self.nodes:
            cluster.make_node(node)
            labels = {"metadata": {"labels": {"pool": self.pool}}}
            cluster.admin.patch(f"/api/v1/nodes/{node}", labels)
        spec = SPEC.replace("canary", self.pool)
        self.make(ROLLOUT, {"rollout.yaml": spec})
        self.make(PROFILES, {"default.yaml": CURRENT, "fast.yaml": CANDIDATE})
        for account in ("rollout", "agent"):
            cluster.make_service_account(namespace, account)
        self.grant()
        client = cluster.client(namespace, "rollout")
        self.api = Api(cluster.kubeconfig(directory / "kubeconfig", client), PATIENT)
        self.admin = Api(cluster.kubeconfig(directory / "admin", cluster.admin), PATIENT)
        self.worker = Worker(self.api)
        agent = cluster.kubeconfig(directory / "agent", cluster.client(namespace, "agent"))
        self.config = directory / "config.yaml"
        self.config.write_text(f"kubernetes: {{node: n1, kubeconfig: {agent}}}\n{POLICIES}")
        self.now_s, self.clock_s = BEGIN_S, 0.0

    def make(self, name: str, data: dict[str, str]) -> None:
        self.cluster.admin.create(self.maps, {"metadata": {"name": name}, "data": data})

    def grant(self) -> None:
        """Grant what the chart grants, in the namespace of the test."""
        group = "rbac.authorization.k8s.io"
        objects = [*render(VALUES)]
        roles, of_agent = (
            {
                each["kind"]: each["rules"]
                for each in objects
                if each["kind"] in ("Role", "ClusterRole") and each["metadata"]["name"] == name
            }
            for name in (ROLLOUT, "sweetpoint")
        )
        self.cluster.grant(self.namespace, "agent", of_agent["ClusterRole"])
        path = f"/apis/{group}/v1/namespaces/{self.namespace}"
        self.cluster.admin.create(
            f"{path}/roles", {"metadata": {"name": ROLLOUT}, "rules": roles["Role"]}
        )
        role = {"apiGroup": group, "kind": "Role", "name": ROLLOUT}
        subject = {"kind": "ServiceAccount", "name": "rollout", "namespace": self.namespace}
        binding = {"metadata": {"name": ROLLOUT}, "roleRef": role, "subjects": [subject]}
        self.cluster.admin.create(f"{path}/rolebindings", binding)
        self.cluster.grant(self.namespace, "rollout", roles["ClusterRole"])
        self.cluster.wait_for_rules(self.namespace, "rollout", roles["Role"], self.namespace)

    def start(self, holder: str) -> Loop:
        """Start a controller, which knows only what is stored."""
        events = Events(self.api, self.worker, holder)
        names = self.namespace, ROLLOUT
        controller = Controller(self.api, events, *names, PROFILES)
        lease = Lease(self.api, *names, holder, lambda: self.clock_s)
        return Loop(controller, lease, lambda: self.clock_s, lambda: self.now_s)

    def measure(self, less: float) -> None:
        """Let each agent publish pairs from now on.

        The first one claims the opposite, with as many pairs as there is room for, and the second
        one publishes what an older agent would.
        """
        liar, older, *honest = self.nodes
        lie = tried(pairs_from(self.now_s + 1, 64, less=-2 * less), 4e9 if less > 0 else None)
        self.publish(liar, encode(lie))
        self.publish(older, "[1,[]]")
        for number, node in enumerate(honest):
            pairs = pairs_from(self.now_s + 1, 10, seed=number, less=less)
            compared = Comparison({"default": "fast"})
            assert Publisher(self.config, node, "canary").publish(pairs, compared) == ""
            self.wait_for(node, encode(tried(pairs)))
        self.now_s += 700

    def publish(self, node: str, text: str) -> None:
        patch = {"metadata": {"annotations": {TRIAL_KEY: text}}}
        assert change_node(self.admin, node, lambda _: {**patch})
        self.wait_for(node, text)

    def wait_for(self, node: str, text: str) -> None:
        """Wait until the server's cache, from which the controller reads, has the annotation."""

        def is_cached() -> bool:
            query = f"resourceVersion=0&labelSelector=pool={self.pool}"
            found = self.cluster.admin.get(f"/api/v1/nodes?{query}")["items"]
            every = {each["metadata"]["name"]: each["metadata"] for each in found}
            return bool(every[node].get("annotations", {}).get(TRIAL_KEY) == text)

        eventually("the server's cache", is_cached)

    def run(self, loop: Loop, end: Phase) -> None:
        """Look every 20 s until the rollout is in *end*; agents go on measuring in the soak."""
        for _ in range(200):
            loop.once()
            self.clock_s += 20
            state = loop.seen().state
            if state is not None and state.phase is end:
                return
            assert loop.leads
        raise AssertionError(f"not {end}: {loop.seen()}")

    def data(self, name: str) -> dict[str, str]:
        found: dict[str, str] = self.cluster.admin.get(f"{self.maps}/{name}")["data"]
        return found

    def reasons(self) -> list[str]:
        path = f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events"
        found: list[Json] = self.cluster.admin.get(path)["items"]
        return sorted(each["reason"] for each in found)


@pytest.fixture
def site(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(cluster, namespace, tmp_path)
    yield site
    site.worker.close()
    assert site.worker.failure is None
    for node in site.nodes:
        cluster.admin.delete(f"/api/v1/nodes/{node}")


def test_a_candidate_that_gains_is_promoted_though_the_server_is_restarted(
    cluster: Cluster, site: Site
) -> None:
    first = site.start("first")
    site.run(first, Phase.CANARY)
    site.measure(0.3)
    site.run(first, Phase.SOAKING)
    wanted = ["RolloutCanary", "RolloutPending", "RolloutSoaking", "RolloutTrialsLeftOut"]
    eventually("the Events", lambda: site.reasons() == wanted)
    cluster.plane.stop_server()
    try:
        with pytest.raises(ApiUnreachable):
            first.once()
        assert not first.leads
    finally:
        cluster.plane.start_server()
    message = first.seen().state
    assert message is not None
    assert "1 node left out: an older agent wrote it" in message.conditions[0].message
    second = site.start("second")  # the first one is killed, and its Lease must end
    eventually("an answer", lambda: _looks(second))
    assert not second.leads
    site.clock_s += 60
    site.measure(0.3)
    site.run(second, Phase.PROMOTED)
    assert "3ms" in site.data(PROFILES)["default.yaml"]
    assert site.data(PROFILES)["fast.yaml"] == CANDIDATE
    # The second controller warns of the trial that is left out once more.
    every = sorted([*wanted, "RolloutPromoted", "RolloutTrialsLeftOut"])
    eventually("the last Event", lambda: site.reasons() == every)
    annotations = {"metadata": {"annotations": {ROLL_BACK_KEY: "yes"}}}
    cluster.admin.patch(f"{site.maps}/{ROLLOUT}", annotations)
    site.run(second, Phase.ROLLED_BACK)
    assert site.data(PROFILES) == {"default.yaml": CURRENT}


def _looks(loop: Loop) -> bool:
    try:
        loop.once()
    except (ApiUnreachable, ApiError):  # roles are read a moment after the start
        return False
    return True


def test_a_candidate_that_hurts_is_removed(site: Site) -> None:
    loop = site.start("only")
    site.run(loop, Phase.CANARY)
    site.measure(-0.3)
    site.run(loop, Phase.ROLLED_BACK)
    assert site.data(PROFILES) == {"default.yaml": CURRENT}
    wanted = ["RolloutCanary", "RolloutPending", "RolloutRolledBack"]
    eventually("the Events", lambda: site.reasons() == wanted)


def test_the_controller_may_change_nothing_else(site: Site) -> None:
    client = site.cluster.client(site.namespace, "rollout")
    site.make("other", {})
    for path in (f"{site.maps}/other", f"/api/v1/nodes/{site.nodes[0]}"):
        with pytest.raises(Refused) as refused:
            client.patch(path, {"metadata": {"annotations": {"a": "b"}}})
        assert refused.value.status == 403
