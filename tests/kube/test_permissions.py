# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The server refuses the agent every verb that its role does not name."""

import pytest

from tests.kube.cluster import Cluster
from tests.kube.permissions import EVERYBODY, allowed, granted

pytestmark = pytest.mark.kube


def test_what_is_allowed_is_what_was_granted(cluster: Cluster, namespace: str) -> None:
    client = cluster.client(namespace, "default")
    assert allowed(client, namespace) == EVERYBODY
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]},
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]},
    ]
    cluster.grant(namespace, "default", rules)
    assert allowed(client, namespace) == EVERYBODY | granted(rules)
