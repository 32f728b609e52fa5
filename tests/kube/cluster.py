# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Objects of a cluster for tests, created as their controllers would create them."""

from collections.abc import Mapping
from functools import partial
import itertools
import json
from pathlib import Path
import subprocess
from typing import Any

from tests.kube.client import Client, Json
from tests.kube.control_plane import ControlPlane
from tests.support.waiting import DEADLINE_S, eventually

__all__ = ("Cluster", "resources")

_numbers = itertools.count()


def resources(qos: str) -> Json:
    """Return the resources of a container that make its pod of Kubernetes QoS class *qos*."""
    amounts = {"cpu": "100m", "memory": "64Mi"}
    return {
        "BestEffort": {},
        "Burstable": {"requests": amounts},
        "Guaranteed": {"requests": amounts, "limits": amounts},
    }[qos]


class Cluster:
    """The API server of the run, with methods that create objects.

    Every ``make_`` method returns the object as the server stored it. The caller chooses names:
    tests share the server, so each test has a namespace and a node of its own.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.admin = plane.admin

    def new_name(self, prefix: str) -> str:
        """Return a name that this run has not used."""
        return f"{prefix}-{next(_numbers)}"

    def make_node(self, name: str) -> Json:
        """Make a Node that is ready, without the taint for nodes that are not ready."""
        capacity = {"cpu": "4", "memory": "8Gi", "pods": "1100"}
        path = f"/api/v1/nodes/{name}"
        labels = {"kubernetes.io/hostname": name}
        self.admin.create(
            "/api/v1/nodes",
            {"metadata": {"name": name, "labels": labels}, "status": {"capacity": capacity}},
        )
        # As the node lifecycle controller does after a report of kubelet.
        self.admin.patch(path, {"spec": {"taints": None}})
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        status = {"capacity": capacity, "allocatable": capacity, "conditions": [ready]}
        return self.admin.patch(f"{path}/status", {"status": status})

    def make_namespace(self, name: str) -> str:
        """Make a namespace with its service account ``default`` and return its name."""
        self.admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
        self.make_service_account(name, "default")
        return name

    def make_service_account(self, namespace: str, name: str) -> Json:
        """Make a service account; ``token`` returns credentials for it."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        return self.admin.create(path, {"metadata": {"name": name}})

    def token(self, namespace: str, account: str, pod: Json | None = None) -> str:
        """Return a token of a service account as kubelet requests it, bound to *pod* if given.

        A bound token identifies the pod and its node to the server; admission policies use that.
        """
        spec: Json = {"expirationSeconds": 3600}
        if pod is not None:
            meta = pod["metadata"]
            reference = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"]}
            spec["boundObjectRef"] = {**reference, "uid": meta["uid"]}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        answer = self.admin.create(path, {"spec": spec})
        return str(answer["status"]["token"])

    def client(self, namespace: str, account: str, pod: Json | None = None) -> Client:
        """Return a client with the token of a service account, bound to *pod* if given."""
        return self.plane.client(self.token(namespace, account, pod))

    def grant(self, namespace: str, account: str, rules: list[Json]) -> None:
        """Grant *rules* of a ClusterRole to a service account, in all namespaces."""
        name = self.new_name("granted")
        group = "rbac.authorization.k8s.io"
        path = f"/apis/{group}/v1"
        self.admin.create(f"{path}/clusterroles", {"metadata": {"name": name}, "rules": rules})
        subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
        role = {"apiGroup": group, "kind": "ClusterRole", "name": name}
        binding = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
        self.admin.create(f"{path}/clusterrolebindings", binding)
        self.wait_for_rules(namespace, account, rules)

    def wait_for_rules(
        self, namespace: str, account: str, rules: list[Json], within: str = ""
    ) -> None:
        """Wait until the server allows what a new role grants to a service account.

        It answers by roles that it watches, a moment late.

        :param within: the namespace that the role is limited to.
        """
        user = f"system:serviceaccount:{namespace}:{account}"
        for rule in rules:
            eventually("a granted role", partial(self._allows, user, rule, within))

    def _allows(self, user: str, rule: Json, within: str) -> bool:
        group, resource, verb = (rule[field][0] for field in ("apiGroups", "resources", "verbs"))
        resource, _, subresource = resource.partition("/")
        asked = {"group": group, "resource": resource, "subresource": subresource, "verb": verb}
        asked |= {"name": next(iter(rule.get("resourceNames", ())), ""), "namespace": within}
        review = {"spec": {"user": user, "resourceAttributes": asked}}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(self.admin.create(path, review)["status"]["allowed"])

    def make_pod(
        self,
        namespace: str,
        name: str,
        *,
        node: str,
        qos: str = "BestEffort",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        owner: Mapping[str, str] | None = None,
        spec: Mapping[str, Any] | None = None,
    ) -> Json:
        """Make a pod that is bound to *node*, as after its scheduling; ``Kubelet`` starts it.

        :param owner: its controller: ``kind`` and ``name``.
        :param spec: further fields of the pod's spec, such as ``priorityClassName``.
        """
        references = []
        if owner is not None:
            uid = "00000000-0000-4000-8000-000000000000"
            reference = {"apiVersion": "apps/v1", "uid": uid, "controller": True, **owner}
            references.append(reference)
        container = {"name": "main", "image": "example.org/main:1", "resources": resources(qos)}
        body = {
            "metadata": {
                "name": name,
                "labels": dict(labels or {}),
                "annotations": dict(annotations or {}),
                "ownerReferences": references,
            },
            "spec": {"nodeName": node, "containers": [container], **(spec or {})},
        }
        return self.admin.create(f"/api/v1/namespaces/{namespace}/pods", body)

    def make_budget(
        self, namespace: str, name: str, labels: Mapping[str, str], *, allowed: int
    ) -> Json:
        """Make a PodDisruptionBudget over the pods with *labels*; see ``allow``."""
        selector = {"matchLabels": dict(labels)}
        path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
        body = {"metadata": {"name": name}, "spec": {"minAvailable": 1, "selector": selector}}
        self.admin.create(path, body)
        return self.allow(namespace, name, allowed)

    def allow(self, namespace: str, name: str, allowed: int) -> Json:
        """Set the number of allowed disruptions, as the disruption controller does.

        If *allowed* is 0, the server answers an eviction with 429.
        """
        path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/{name}"
        budget = self.admin.get(path)
        budget["status"] = {
            "observedGeneration": budget["metadata"]["generation"],
            "disruptionsAllowed": allowed,
            "currentHealthy": 1 + allowed,
            "desiredHealthy": 1,
            "expectedPods": 1 + allowed,
            "conditions": [],
        }
        return self.admin.replace(f"{path}/status", budget)

    def kubeconfig(self, path: Path, client: Client, url: str | None = None) -> Path:
        """Write a kubeconfig with the token of *client* to *path* and return *path*."""
        authority = {"certificate-authority": str(self.plane.ca_file)}
        server = {"server": url or self.plane.url, **authority}
        context = {"cluster": "test", "user": "test"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": server}],
            "users": [{"name": "test", "user": {"token": client.token}}],
            "contexts": [{"name": "test", "context": context}],
        }
        path.write_text(json.dumps(config))  # JSON is YAML
        path.chmod(0o600)
        return path

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Return the output of kubectl as admin; its failure fails the test with its message."""
        config = self.plane.home / "admin.kubeconfig"
        if not config.exists():
            self.kubeconfig(config, self.admin)
        options = (f"--kubeconfig={config}", f"--cache-dir={config.parent}/kubectl")

        def run() -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                ["kubectl", *options, *arguments],
                input=stdin,
                capture_output=True,
                text=True,
                check=False,
                timeout=DEADLINE_S,
            )

        done = run()
        if "TLS handshake timeout" in done.stderr:  # the machine stood: nothing was asked yet
            done = run()
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout
