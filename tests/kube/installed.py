# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The project's chart, rendered by Helm and created with kubectl as by a user."""

from pathlib import Path
from typing import Any

from helm_python import Chart
import yaml

from tests.kube.client import Client, Json
from tests.kube.cluster import Cluster

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
        texts = chart.render(values, name=self.name, namespace=self.namespace).values()
        documents = [each for text in texts for each in yaml.safe_load_all(text) if each]
        # Helm runs hooks, at the uninstallation.
        self.objects = [
            each
            for each in documents
            if "helm.sh/hook" not in each["metadata"].get("annotations", {})
        ]
        manifests = yaml.safe_dump_all(self.objects)
        cluster.kubectl("create", "--validate=strict", "-n", self.namespace, "-f-", stdin=manifests)

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
