# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Profiles from a ConfigMap of a real API server, with the permissions of a minimal Role."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.kube.client.api import Api
from controller.kube.client.watch import ConfigMapWatch
from controller.kube.profile_configmap import ClusterProfiles
from controller.kube.state import Reload
from tests.kube.client import Client, Json, Refused
from tests.kube.cluster import Cluster
from tests.support.kube.limits import PATIENT
from tests.support.waiting import eventually

pytestmark = pytest.mark.kube

NAME = "tuning"
RULE = {
    "apiGroups": [""],
    "resources": ["configmaps"],
    "resourceNames": [NAME],
    "verbs": ["list", "watch"],
}


def gold(milliseconds: int) -> str:
    return f"name: gold\nindicators: {{runq_p99: {{sweet_point: {milliseconds}ms}}}}\n"


class Site:
    """A namespace with a ConfigMap, and a service account that may only read it."""

    def __init__(self, cluster: Cluster, namespace: str, directory: Path) -> None:
        self._admin = cluster.admin
        self.namespace = namespace
        self.path = f"/api/v1/namespaces/{namespace}/configmaps"
        cluster.make_service_account(namespace, "agent")
        roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
        self._admin.create(f"{roles}/roles", {"metadata": {"name": "agent"}, "rules": [RULE]})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "agent"}
        subject = {"kind": "ServiceAccount", "name": "agent", "namespace": namespace}
        self._admin.create(
            f"{roles}/rolebindings",
            {"metadata": {"name": "agent"}, "roleRef": reference, "subjects": [subject]},
        )
        client = cluster.client(namespace, "agent")
        self.api = Api(cluster.kubeconfig(directory / "kubeconfig", client), PATIENT)
        # A new role takes effect at the server's authorizer after a moment.
        eventually(
            "the role", lambda: _may(client, f"{self.path}?fieldSelector=metadata.name={NAME}")
        )
        self.profiles = ClusterProfiles(namespace, NAME, tick_ns=2 * 10**8, cpus=4)

    def make(self, name: str = NAME, **data: str) -> None:
        self._admin.create(self.path, _config_map(name, data))

    def change(self, **data: str | None) -> None:
        self._admin.patch(f"{self.path}/{NAME}", {"data": data})

    def delete(self) -> None:
        self._admin.delete(f"{self.path}/{NAME}")

    def is_cached(self) -> bool:
        """Whether the server's cache has the ConfigMap."""
        selector = f"fieldSelector=metadata.name={NAME}"
        return bool(self._admin.get(f"{self.path}?resourceVersion=0&{selector}")["items"])

    def wait_for(self, **reloads: int) -> None:
        """Wait until the changes had these numbers of results."""
        wanted = dict.fromkeys(Reload, 0) | {Reload(key): n for key, n in reloads.items()}
        eventually("the reloads", lambda: dict(self.profiles.state.reloads) == wanted)


def _config_map(name: str, data: dict[str, str]) -> Json:
    return {"metadata": {"name": name}, "data": {f"{key}.yaml": text for key, text in data.items()}}


def _may(client: Client, path: str) -> bool:
    try:
        client.get(path)
    except Refused:
        return False
    return True


@pytest.fixture
def site(cluster: Cluster, namespace: str, tmp_path: Path) -> Site:
    return Site(cluster, namespace, tmp_path)


@pytest.fixture
def watch(site: Site) -> Iterator[ConfigMapWatch]:
    following = ConfigMapWatch(site.api, site.namespace, NAME, site.profiles.update)
    yield following
    following.close()
    assert following.failure is None


def test_each_change_is_applied_or_refused_as_a_whole(site: Site, watch: ConfigMapWatch) -> None:
    site.wait_for(missing=1)
    site.make("other", gold=gold(9))  # another ConfigMap: it would cause one more reload
    site.make(gold=gold(3))
    site.wait_for(missing=1, applied=1)
    site.change(**{"bad.yaml": "name: bad\n"})
    site.wait_for(missing=1, applied=1, failed=1)
    assert site.profiles.state.profiles["gold"].indicators[0].sweet_point == 3e6
    site.change(**{"bad.yaml": None, "gold.yaml": gold(4)})
    site.wait_for(missing=1, applied=2, failed=1)
    assert site.profiles.state.profiles["gold"].indicators[0].sweet_point == 4e6
    site.delete()
    site.wait_for(missing=2, applied=2, failed=1)
    assert set(site.profiles.state.profiles) == {"gold"}
    site.make(gold=gold(5))
    site.wait_for(missing=2, applied=3, failed=1)
    assert not watch.problem and not watch.errors


def test_an_existing_configmap_is_read(site: Site) -> None:
    site.make(gold=gold(3))
    # The first list is from the server's cache, which may be older.
    eventually("the object in the cache", site.is_cached)
    following = ConfigMapWatch(site.api, site.namespace, NAME, site.profiles.update)
    site.wait_for(applied=1)
    following.close()


def test_a_missing_permission_is_reported_and_retried(site: Site) -> None:
    following = ConfigMapWatch(site.api, site.namespace, "other", site.profiles.update)
    eventually("the problem", lambda: following.problem)
    assert following.problem.startswith("403 Forbidden: ")
    eventually("another request", lambda: following.errors["403"] > 1)
    following.close()
    assert site.profiles.state.result is None


def test_no_change_is_missed_after_a_lost_watch(site: Site, watch: ConfigMapWatch) -> None:
    site.wait_for(missing=1)
    site.make(gold=gold(3))
    site.wait_for(missing=1, applied=1)
    site.api.abort(watch._thread)  # like a broken connection
    site.change(**{"gold.yaml": gold(4)})
    site.wait_for(missing=1, applied=2)
    assert site.profiles.state.profiles["gold"].indicators[0].sweet_point == 4e6
