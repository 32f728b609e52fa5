# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The part of Katalyst that the agent reads: ServiceProfileDescriptors, in a real API server."""

from collections.abc import Mapping

from tests.kube.client import Json, Refused
from tests.kube.cluster import Cluster
from tests.support.waiting import eventually

__all__ = ("RULE", "install", "make_descriptor", "path")

_GROUP, _PLURAL = "workload.katalyst.kubewharf.io", "serviceprofiledescriptors"
RULE = {"apiGroups": [_GROUP], "resources": [_PLURAL], "verbs": ["list", "watch"]}


def install(cluster: Cluster) -> None:
    """Define the custom resource, once; it stays, because the tests share the server."""
    text = {"type": "string"}
    level = _record(indicatorLevel=text, value={"type": "number"})
    indicator = _record(name=text, indicators={"type": "array", "items": level})
    spec = _record(
        targetRef=_record(apiVersion=text, kind=text, name=text),
        systemIndicator={"type": "array", "items": indicator},
    )
    status = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": _record(spec=spec, status=status)},
    }
    names = {"plural": _PLURAL, "singular": _PLURAL[:-1], "kind": "ServiceProfileDescriptor"}
    definition = {
        "metadata": {"name": f"{_PLURAL}.{_GROUP}"},
        "spec": {"group": _GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }
    try:
        cluster.admin.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    except Refused as error:
        assert error.status == 409, error
    eventually("the definition", lambda: _is_there(cluster))


def path(namespace: str, name: str = "") -> str:
    """Return the path of the descriptors of a namespace, or of one of them."""
    return f"/apis/{_GROUP}/v1alpha1/namespaces/{namespace}/{_PLURAL}{name and '/'}{name}"


def make_descriptor(
    cluster: Cluster, namespace: str, name: str, target: Mapping[str, str], **upper: float
) -> Json:
    """Make a descriptor for the controller *target* with upper bounds of indicators."""
    indicators = [
        {"name": key, "indicators": [{"indicatorLevel": "UpperBound", "value": value}]}
        for key, value in upper.items()
    ]
    reference = {"apiVersion": "apps/v1", **target}
    body = {
        "apiVersion": f"{_GROUP}/v1alpha1",
        "kind": "ServiceProfileDescriptor",
        "metadata": {"name": name},
        "spec": {"targetRef": reference, "systemIndicator": indicators},
    }
    return cluster.admin.create(path(namespace), body)


def _record(**fields: Json) -> Json:
    return {"type": "object", "properties": fields}


def _is_there(cluster: Cluster) -> bool:
    try:
        cluster.admin.get(path("default"))
    except Refused:
        return False
    return True
