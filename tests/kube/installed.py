# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The project's chart, rendered by Helm and created with kubectl as by a user."""

from pathlib import Path
from typing import Any

from helm_python import Chart
import yaml

from tests.kube.client import Client, Json
from tests.kube.cluster import Cluster
from tests.support.chart import objects

__all__ = ("Installed",)

_CHART = Path(__file__).parents[2] / "deploy" / "chart"


class Installed:
    """The objects of a release in a new namespace; no controller acts on them.

    ``name`` is the name of the release, and of the agent's service account and roles.
    """

    def __init__(self, cluster: Cluster, values: dict[str, Any]) -> None:
        self._cluster = cluster
        self.name = cluster.new_name("sweetpoint")
        self.namespace = cluster.make_namespace(cluster.new_name("install"))
        chart = Chart.load(str(_CHART))
        documents = objects(chart, values, self.name, self.namespace)
        # Helm creates hooks at the uninstallation.
        self.objects: list[Json] = []
        self._hooks: list[Json] = []
        for each in documents:
            hook = "helm.sh/hook" in each["metadata"].get("annotations", {})
            (self._hooks if hook else self.objects).append(each)
        self._create(self.objects)

    def create_hooks(self) -> None:
        """Create the objects of the uninstallation except its Job, which no controller runs."""
        self._create([each for each in self._hooks if each["kind"] != "Job"])

    @property
    def hook_pod(self) -> Json:
        """The pod of the uninstallation's Job, as the Job's controller would create it."""
        (job,) = (each for each in self._hooks if each["kind"] == "Job")
        return {
            "metadata": {"generateName": f"{self.name}-"},
            "spec": job["spec"]["template"]["spec"],
        }

    def _create(self, objects: list[Json]) -> None:
        manifests = yaml.safe_dump_all(objects)
        create = ("create", "--validate=strict", "-n", self.namespace, "-f-")
        self._cluster.kubectl(*create, stdin=manifests)
        for each in objects:
            if each["kind"] in ("ClusterRole", "Role"):
                # The chart gives a role the name of its account.
                meta = each["metadata"]
                within = meta.get("namespace", "")
                self._cluster.wait_for_rules(self.namespace, meta["name"], each["rules"], within)

    @property
    def rules(self) -> list[Json]:
        """The rules of the ClusterRole."""
        (role,) = (each for each in self.objects if each["kind"] == "ClusterRole")
        return list(role["rules"])

    def agent(self, node: str) -> Client:
        """Return a client with the token that the agent's pod on *node* gets."""
        account = {"serviceAccountName": self.name}
        name = self._cluster.new_name("agent")
        pod = self._cluster.make_pod(self.namespace, name, node=node, spec=account)
        return self._cluster.client(self.namespace, self.name, pod)

    def stranger(self) -> Client:
        """Return a client with an unbound token of the agent's service account, as if stolen."""
        return self._cluster.client(self.namespace, self.name)
