# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A fleet of agents without hosts, and the controller of a rollout, at a real API server.

Each agent is a process of its own (``canary_agent``) with the token of a pod of its node, and with
the rights and the admission policies that the chart makes. The controller is the real program with
a faster clock.
"""

from collections.abc import Sequence
from functools import partial
import json
from pathlib import Path
import subprocess
import sys
import time
from typing import Any

from controller.host.facts import CgroupLayout
from controller.rollout.controller import ROLL_BACK_KEY
from controller.rollout.state import Phase
from controller.rollout.summary import TRIAL_KEY, Trial, decode
from tests.kube.canary_agent import LIAR, POLICY
from tests.kube.client import Client, Json, Refused
from tests.kube.cluster import Cluster
from tests.kube.fast_clock import FastClock
from tests.kube.installed import Installed
from tests.kube.kubelet import Kubelet
from tests.kube.kubepods import Kubepods
from tests.support.temporary import Temporary
from tests.support.waiting import DEADLINE_S, eventually

__all__ = ("LEAST_PAIRS", "Fleet", "Member")

LEAST_PAIRS = 4
FASTER = 60.0
DEFAULT_MS = 5
_ENDS = [each for each in Phase if each.is_end]


class Member:
    """A node of the fleet, its agent's ``client``, and the agent's process while that runs."""

    def __init__(self, fleet: "Fleet", kind: str, pool: str) -> None:
        cluster = fleet.cluster
        self.kind, self.node = kind, cluster.new_name("canary")
        self.home = fleet.home / self.node
        base = self.home / "cgroup"
        base.mkdir(parents=True)
        layout = CgroupLayout(hierarchy="cpu", mount=base, version="v1", unified=None)
        kubelet = Kubelet(cluster, self.node, Kubepods(base, layout))
        cluster.admin.patch(f"/api/v1/nodes/{self.node}", {"metadata": {"labels": {"pool": pool}}})
        release = fleet.release
        web = cluster.make_pod(release.namespace, self.node, node=self.node, qos="Burstable")
        kubelet.start(web)
        self.client: Client = release.agent(self.node)
        kubeconfig = cluster.kubeconfig(self.home / "kubeconfig", self.client)
        (self.home / "config.yaml").write_text(
            f"mode: {fleet.mode}\n"
            f"state_dir: {self.home}/state\ndata_dir: {self.home}/data\n"
            f"kubernetes:\n  node: {self.node}\n  kubeconfig: {kubeconfig}\n"
            "  cgroup_roots: [/kubepods]\n"
            f"  profiles: {{config_map: {fleet.profiles}, namespace: {release.namespace}}}\n"
            f"policies: [{{name: {POLICY}, nodes: {{matchLabels: {{pool: {fleet.pool}}}}}, "
            f"{fleet.policy}}}]\n"
        )
        self._words = [*fleet.clock.words(), str(self.home), kind]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.kube.canary_agent", *self._words]
        with (self.home / "log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    @property
    def view(self) -> dict[str, Any]:
        """What the agent says: its service's profile and sweet point, and the published pairs."""
        assert self.process is not None
        log = self.home / "log"
        assert self.process.poll() is None, f"an agent ended: {log.read_text()}"
        try:
            return dict(json.loads((self.home / "view.json").read_text()))
        except FileNotFoundError:
            return {}

    def is_in(self, mode: str) -> bool:
        return bool(self.view.get("mode") == mode)

    def has(self, name: str, sweet_point_ms: float) -> bool:
        view = self.view
        return (view.get("profile"), view.get("sweet_point_ms")) == (name, sweet_point_ms)


class Fleet(Temporary):
    """*canaries* nodes of a pool, the first of which lies, and one more node.

    The service of a node suffers by its sweet point; with the candidate that is *candidate_ms*.
    ``None``: the candidate is a policy that raises the mode, and the service gains by that.
    """

    def __init__(
        self, cluster: Cluster, home: Path, canaries: int, candidate_ms: int | None
    ) -> None:
        self.cluster, self.home = cluster, home
        self.clock = FastClock(time.time(), FASTER)
        self.pool = cluster.new_name("pool")
        self._canaries = canaries
        self._candidate_ms = candidate_ms
        self.controller: subprocess.Popen[bytes] | None = None
        self._logs = 0
        self.members: list[Member] = []

    def make(self) -> None:
        candidate: Json = {"candidate": "fast", "replaces": "default"}
        if self._candidate_ms is None:
            candidate = {"policy": {"name": POLICY, "set": {"mode": "enforce"}}}
        spec = candidate | {
            "nodes": {"pool": self.pool},
            # So that each node has a verdict when one is taken, and counts say what each had.
            "least_nodes": self._canaries,
            "least_pairs": LEAST_PAIRS,
            "soak": "1m",
        }
        profiles = {
            name: {"indicators": {"runq_p99": {"sweet_point": f"{point}ms"}}}
            for name, point in (("default", DEFAULT_MS), ("fast", self._candidate_ms or DEFAULT_MS))
        }
        values = {
            "mode": "enforce",
            "profiles": profiles,
            "rollout": {"enabled": True, "spec": spec},
        }
        self.release = Installed(self.cluster, values)
        self.profiles = f"{self.release.name}-profiles"
        self.rollout = f"{self.release.name}-rollout"
        kinds = [LIAR, *["honest"] * (self._canaries - 1)]
        self.members = [Member(self, kind, self.pool) for kind in kinds]
        self.members.append(Member(self, "honest", "others"))
        client = self.cluster.client(self.release.namespace, self.rollout)
        self._kubeconfig = self.cluster.kubeconfig(self.home / "rollout", client)

    def close(self) -> None:
        self.kill_controller()
        running = [each.process for each in self.members if each.process is not None]
        for process in running:
            process.terminate()
        stuck = 0
        for process in running:
            try:
                process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                stuck += 1
                process.kill()
                process.wait()
        for each in self.members:
            self.cluster.admin.delete(f"/api/v1/nodes/{each.node}")
        assert not stuck, "agents did not end after SIGTERM"

    def user(self, account: str) -> str:
        """Return the user name of a service account of the release."""
        return f"system:serviceaccount:{self.release.namespace}:{account}"

    @property
    def mode(self) -> str:
        """The mode of the agents' configuration without its policy."""
        return "observe" if self._candidate_ms is None else "enforce"

    @property
    def policy(self) -> str:
        """What the policy of the agents has, besides its name and its nodes."""
        if self._candidate_ms is None:
            return "rollout: true, set: {mode: enforce}"
        return "set: {replace_profiles: {default: fast}}"

    @property
    def canaries(self) -> Sequence[Member]:
        return self.members[:-1]

    @property
    def bystander(self) -> Member:
        return self.members[-1]

    def start(self) -> None:
        """Start the agents, and wait until each has the profile that its node is to have.

        One after the other: twenty interpreters that start at once are slow on two CPUs.
        """
        for each in self.members:
            each.start()
            is_canary = each is not self.bystander
            if self._candidate_ms is None:
                self.follow_mode("enforce" if is_canary else "observe", [each])
            elif is_canary:
                self.follow("fast", self._candidate_ms, [each])
            else:
                self.follow("default", DEFAULT_MS, [each])

    def follow(self, name: str, sweet_point_ms: float, members: Sequence[Member]) -> None:
        for each in members:
            eventually(f"{name} on {each.node}", partial(each.has, name, sweet_point_ms))

    def follow_mode(self, mode: str, members: Sequence[Member]) -> None:
        for each in members:
            eventually(f"{mode} on {each.node}", partial(each.is_in, mode))

    def want(self, pairs: int) -> None:
        """Let each agent publish so many pairs in all."""
        new = self.home / "wanted.new"
        new.write_text(str(pairs))
        new.rename(self.home / "wanted")

    def start_controller(self) -> None:
        assert self.controller is None
        words = [
            f"--kubeconfig={self._kubeconfig}",
            f"--namespace={self.release.namespace}",
            f"--rollout={self.rollout}",
            f"--profiles={self.profiles}",
        ]
        command = [sys.executable, "-m", "tests.kube.fast_rollout", *self.clock.words(), *words]
        self._logs += 1
        with (self.home / f"controller-{self._logs}.log").open("wb") as log:
            self.controller = subprocess.Popen(command, stdout=log, stderr=log)

    def kill_controller(self) -> None:
        if self.controller is not None:
            self.controller.kill()
            self.controller.wait()
            self.controller = None

    def give_up(self) -> None:
        """Ask for the roll-back, as an operator does."""
        path = f"/api/v1/namespaces/{self.release.namespace}/configmaps/{self.rollout}"
        self.cluster.admin.patch(path, {"metadata": {"annotations": {ROLL_BACK_KEY: "yes"}}})

    def data(self, name: str) -> dict[str, str]:
        path = f"/api/v1/namespaces/{self.release.namespace}/configmaps/{name}"
        return dict(self.cluster.admin.get(path)["data"])

    def state(self) -> Json:
        found = self.data(self.rollout).get("status.json")
        return {} if found is None else dict(json.loads(found))

    def wait_for(self, phase: Phase) -> Json:
        """Wait until the rollout is in *phase*, and an end is applied; return its state."""

        before = self.state().get("phase")

        def found() -> Json | None:
            assert self.controller is not None and self.controller.poll() is None
            state = self.state()
            reached = state.get("phase") == phase and state["applied"] is phase.is_end
            is_other_end = state.get("phase") in {*_ENDS} - {phase, before}
            assert not is_other_end, f"not {phase}: {state}"
            return state if reached else None

        return eventually(f"the phase {phase}", found)

    def published(self) -> dict[str, Trial]:
        """Return the trial in the annotation of each Node that has one."""
        nodes = {each.node for each in self.members}
        found = {}
        for each in self.cluster.admin.get("/api/v1/nodes")["items"]:
            text = each["metadata"].get("annotations", {}).get(TRIAL_KEY)
            if each["metadata"]["name"] in nodes and text is not None:
                found[each["metadata"]["name"]] = decode(text)
        return found

    def may_write(self, writer: Member, node: str) -> bool:
        """Whether the agent of *writer* may change the annotation of *node*."""
        body = {"metadata": {"annotations": {"sweetpoint.dev/probe": None}}}
        try:
            writer.client.patch(f"/api/v1/nodes/{node}", body)
        except Refused as refused:
            assert refused.status in (403, 422), refused
            return False
        return True
