# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A rollout with a real agent on a canary node, from its trial to the profile that it ends with.

The agent begins the trial by itself. Two more canary nodes are made up: what they publish decides,
so that the outcome of the real one's trial does not.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
import time

import pytest

from controller.host.trial_record import Record, read_record
from controller.kube.client.api import Api
from controller.kube.client.worker import Worker
from controller.kube.events import Events
from controller.kube.lease import Lease
from controller.rollout.controller import Controller
from controller.rollout.loop import Loop
from controller.rollout.state import Phase, State
from controller.rollout.summary import TRIAL_KEY, encode
from tests.kernel.agent import AgentRun
from tests.kube.cluster import Cluster
from tests.kube.installed import Installed
from tests.kube.kubelet import Kubelet, Running
from tests.kube.site import NodeSite
from tests.support.kube.limits import PATIENT
from tests.support.rollout import pairs_from, profile, tried
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kube, pytest.mark.kernel]

PAIRS = 3
# A trial that does not end in the test.
TRIAL = (
    "trial: {enabled: true, policy: canary, publish: true, for: 24h, block: 2s, washout: 500ms, "
    "most_harm: 100%}\n"
)


class Fleet:
    """Three canary nodes with a release of the chart; the agent of the first one is real."""

    def __init__(self, cluster: Cluster, kubelet: Kubelet, directory: Path) -> None:
        self.cluster, self.pool = cluster, cluster.new_name("pool")
        self.made = [cluster.new_name("canary") for _ in range(2)]
        for node in self.made:
            cluster.make_node(node)
        for node in (kubelet.node, *self.made):
            labels = {"metadata": {"labels": {"pool": self.pool}}}
            cluster.admin.patch(f"/api/v1/nodes/{node}", labels)
        spec = {
            "candidate": "fast",
            "replaces": "default",
            "nodes": {"pool": self.pool},
            "least_pairs": PAIRS,
            "soak": "1m",
        }
        profiles = {
            name: {"indicators": {"runq_p99": {"sweet_point": point}}}
            for name, point in (("default", "5ms"), ("fast", "3ms"))
        }
        rollout = {"enabled": True, "spec": spec}
        values = {"mode": "enforce", "profiles": profiles, "rollout": rollout}
        release = self.release = Installed(cluster, values)
        self.profiles, self.rollout = f"{release.name}-profiles", f"{release.name}-rollout"
        self.site = NodeSite(cluster, kubelet, directory, release.agent(kubelet.node))
        where = f"config_map: {self.profiles}, namespace: {release.namespace}"
        policy = f"nodes: {{matchLabels: {{pool: {self.pool}}}}}, set: {{replace_profiles: "
        self.site.write(
            extra=f"policies: [{{name: canary, {policy}{{default: fast}}}}}}]\n{TRIAL}",
            kubernetes=f"  profiles: {{{where}}}\n",
        )
        client = cluster.client(release.namespace, self.rollout)
        self.api = Api(cluster.kubeconfig(directory / "rollout", client), PATIENT)
        self.worker = Worker(self.api)
        self.clock_s = 0.0
        names = release.namespace, self.rollout
        controller = Controller(
            self.api, Events(self.api, self.worker, "only"), *names, self.profiles
        )
        lease = Lease(self.api, *names, "only", lambda: self.clock_s)
        self.loop = Loop(controller, lease, lambda: self.clock_s, time.time)

    def close(self) -> None:
        self.worker.close()
        assert self.worker.failure is None
        for node in self.made:
            self.cluster.admin.delete(f"/api/v1/nodes/{node}")

    def look(self) -> State:
        """Let the controller look, 20 s after the last time."""
        self.loop.once()
        self.clock_s += 20
        state = self.loop.seen().state
        assert state is not None, self.loop.seen()
        return state

    def publish_of_others(self, less: float) -> None:
        """Let the made up nodes publish that they gain *less*."""
        for number, node in enumerate(self.made):
            text = encode(tried(pairs_from(round(time.time()) + 1.0, 10, seed=number, less=less)))
            body = {"metadata": {"annotations": {TRIAL_KEY: text}}}
            self.cluster.admin.patch(f"/api/v1/nodes/{node}", body)

    def change_candidate(self, milliseconds: int) -> None:
        path = f"/api/v1/namespaces/{self.release.namespace}/configmaps/{self.profiles}"
        self.cluster.admin.patch(path, {"data": {"fast.yaml": profile("fast", milliseconds)}})

    def leave_the_pool(self) -> None:
        """Take the label of a canary node from the real one."""
        labels = {"metadata": {"labels": {"pool": None}}}
        self.cluster.admin.patch(f"/api/v1/nodes/{self.site.kubelet.node}", labels)


@pytest.fixture
def fleet(cluster: Cluster, kubelet: Kubelet, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(cluster, kubelet, tmp_path)
    yield fleet
    fleet.close()


@pytest.fixture
def web(fleet: Fleet, kubelet: Kubelet, namespace: str) -> Running:
    batch = fleet.cluster.make_pod(namespace, "batch", node=kubelet.node, qos="BestEffort")
    kubelet.start(batch)
    return kubelet.start(
        fleet.cluster.make_pod(namespace, "web", node=kubelet.node, qos="Burstable")
    )


def test_the_agent_of_a_canary_node_follows_a_roll_back_and_a_promotion(
    fleet: Fleet, web: Running
) -> None:
    with AgentRun(fleet.site) as agent:
        agent.ready().enforcing()

        def has(name: str, milliseconds: int) -> Callable[[], bool]:
            def is_so() -> bool:
                found = fleet.site.workload(agent, web)
                loops = [
                    each
                    for each in agent.status()["plan"]["loops"]
                    if each["indicator"] == "runq_p99"
                ]
                points = {each["sweet_point"] for each in loops}
                return (found or {}).get("profile") == name and points == {milliseconds * 1e6}

            return is_so

        eventually("the candidate", has("fast", 3))
        assert [fleet.look().phase, fleet.look().phase] == [Phase.PENDING, Phase.CANARY]
        fleet.publish_of_others(-0.3)
        state = eventually("all verdicts", lambda: judged(fleet))
        assert state.phase is Phase.ROLLED_BACK
        eventually("the profile of before", has("default", 5))

        fleet.change_candidate(4)
        eventually("the other candidate", has("fast", 4))
        assert [fleet.look().phase, fleet.look().phase] == [Phase.PENDING, Phase.CANARY]
        fleet.publish_of_others(0.3)
        assert eventually("all verdicts", lambda: judged(fleet)).phase is Phase.SOAKING
        fleet.publish_of_others(0.3)
        eventually("the promotion", lambda: fleet.look().phase is Phase.PROMOTED)
        eventually("the candidate, which the policy still gives", has("fast", 4))
        fleet.leave_the_pool()
        eventually("the promoted profile", has("default", 4))
        eventually("the end of the trial", lambda: trial_of(fleet).ended)
        assert "policy canary" in (trial_of(fleet).ended or "")
        assert agent.status()["tick"]["failed"] == 0
        assert agent.stop() == 0


def trial_of(fleet: Fleet) -> Record:
    record = read_record(fleet.site.home / "data")
    assert record is not None
    return record


def judged(fleet: Fleet) -> State | None:
    """Look until the cache of the server has what all nodes published; return the state."""
    state = fleet.look()
    waits = state.nodes.get("not judged", 0)
    assert state.nodes.get("left out", 0) == 0
    return None if waits else state
