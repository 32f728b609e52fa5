# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Effective permissions of a client: every verb of every resource is tried at the server."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.kube.client import Client, Json, Refused

__all__ = ("EVERYBODY", "Permission", "allowed", "granted")

_NOBODY = "sweetpoint-no-such-object"


class Permission(NamedTuple):
    """One verb on one resource of an API group; ``pods/eviction`` is a subresource."""

    group: str
    resource: str
    verb: str


# Permissions of every identity (system:basic-user).
EVERYBODY = frozenset(
    {
        Permission("authentication.k8s.io", "selfsubjectreviews", "create"),
        Permission("authorization.k8s.io", "selfsubjectaccessreviews", "create"),
        Permission("authorization.k8s.io", "selfsubjectrulesreviews", "create"),
    }
)


def granted(rules: Iterable[Json]) -> set[Permission]:
    """Return the permissions that *rules* of a role grant; wildcards are not supported."""
    return {
        Permission(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def allowed(client: Client, namespace: str) -> set[Permission]:
    """Return the requests that the server allows to *client*, in *namespace* or cluster-wide.

    Nothing is changed: the names of objects do not exist, and writes are dry runs.
    """
    found = set()
    for group, base, resource in _resources(client):
        for verb in resource["verbs"]:
            name = resource["name"]
            if not _refused(client, verb, *_paths(base, resource, namespace)):
                found.add(Permission(group, name, verb))
    return found


def _resources(client: Client) -> Iterator[tuple[str, str, Json]]:
    groups = {
        group["name"]: f"/apis/{group['preferredVersion']['groupVersion']}"
        for group in client.get("/apis")["groups"]
    }
    for group, base in {"": "/api/v1", **groups}.items():
        for resource in client.get(base)["resources"]:
            yield group, base, resource


def _paths(base: str, resource: Json, namespace: str) -> tuple[str, str]:
    # Of the collection and of one object.
    kind, _, sub = resource["name"].partition("/")
    if resource["namespaced"]:
        base = f"{base}/namespaces/{namespace}"
    one = f"{base}/{kind}/{_NOBODY}"
    return (f"{one}/{sub}",) * 2 if sub else (f"{base}/{kind}", one)


def _refused(client: Client, verb: str, collection: str, one: str) -> bool:
    dry = "?dryRun=All"
    method, path = {
        "get": ("GET", one),
        "list": ("GET", collection),
        "watch": ("GET", f"{collection}?watch=1&timeoutSeconds=1"),
        "create": ("POST", collection + dry),
        "update": ("PUT", one + dry),
        "patch": ("PATCH", one + dry),
        "delete": ("DELETE", one + dry),
        "deletecollection": ("DELETE", collection + dry),
    }[verb]
    kind = "application/merge-patch+json" if verb == "patch" else "application/json"
    body: Json | None = {} if method in ("POST", "PUT", "PATCH") else None
    try:
        client.call(method, path, body, kind)
    except Refused as error:
        return error.status == 403
    return False
