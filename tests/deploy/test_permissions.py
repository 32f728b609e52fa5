# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of permissions in SECURITY.md and in the chart's README are what the chart grants."""

from collections.abc import Iterable, Iterator
from pathlib import Path
import re
from typing import NamedTuple

import pytest

from tests.deploy.chart import Manifest, render
from tools.chart.__main__ import CHART

ROOT = Path(__file__).parents[2]
SECURITY = (ROOT / "SECURITY.md").read_text()

ALWAYS, UNINSTALL = "always", "`uninstall.enabled`"
# The values of the chart for each text in the column "with".
SETTINGS: dict[str, Manifest] = {
    ALWAYS: {},
    UNINSTALL: {},
    "`config.kubernetes.eviction`": {"config": {"kubernetes": {"eviction": {"enabled": False}}}},
    "`config.kubernetes.eviction.enabled`": {
        "config": {"kubernetes": {"eviction": {"enabled": True}}}
    },
    "`config.kubernetes.capacity`": {"config": {"kubernetes": {"capacity": {"enabled": True}}}},
    "`config.kubernetes.service_profiles`": {"config": {"kubernetes": {"service_profiles": "all"}}},
    "`openshift.enabled`": {"openshift": {"enabled": True}},
    "`rollout.enabled`": {
        "rollout": {
            "enabled": True,
            "spec": {"candidate": "fast", "replaces": "default", "nodes": {"pool": "canary"}},
        }
    },
}
# What a setting in the table implies.
IMPLIED = {"`config.kubernetes.eviction.enabled`": "`config.kubernetes.eviction`"}
OPERATIONS = {"create": "CREATE", "patch": "UPDATE"}


class Permission(NamedTuple):
    """One permission. ``what`` is a resource with its group and a verb, or a role of another."""

    identity: str
    what: str
    where: str
    policies: frozenset[str]


def table(text: str, heading: str) -> Iterator[list[str]]:
    """Yield the cells of each row of the table in *text* with *heading*."""
    lines = text[text.index(heading) :].splitlines()[2:]
    for line in lines:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def documented() -> dict[str, set[Permission]]:
    """Return the permissions in SECURITY.md by the setting with which they are granted."""
    found: dict[str, set[Permission]] = {}
    for identity, permission, where, setting, limit in table(SECURITY, "| identity | permission |"):
        resource, _, verbs = permission.partition(": ")
        is_role = permission.startswith("role ")
        every = [permission] if is_role else [f"{resource}: {verb}" for verb in verbs.split(", ")]
        policies = frozenset(re.findall("`([^`]+)`", limit))
        for what in every:
            permissions = found.setdefault(setting, set())
            assert Permission(identity, what, where, policies) not in permissions, what
            permissions.add(Permission(identity, what, where, policies))
    return found


def granted(values: Manifest) -> set[Permission]:
    """Return the permissions that the chart grants with *values*."""
    objects = list(render(values))
    roles = {
        (each["kind"], each["metadata"]["name"]): each["rules"]
        for each in objects
        if each["kind"] in ("Role", "ClusterRole")
    }
    return {
        permission
        for each in objects
        if each["kind"].endswith("RoleBinding")
        for permission in bound(each, roles, objects)
    }


def bound(
    binding: Manifest, roles: dict[tuple[str, str], list[Manifest]], objects: Iterable[Manifest]
) -> Iterator[Permission]:
    (subject,) = binding["subjects"]
    last = subject["name"].rpartition("-")[2]
    identity = {"uninstall": "uninstallation", "rollout": "rollout"}.get(last, "agent")
    role = binding["roleRef"]["kind"], binding["roleRef"]["name"]
    where = "whole cluster" if binding["kind"] == "ClusterRoleBinding" else "namespace"
    if role not in roles:
        yield Permission(identity, f"role {role[1]}", where, frozenset())
        return
    for rule in roles[role]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    limits = limiting(objects, resource, verb) if identity == "agent" else ()
                    name = f"{resource}.{group}" if group else resource
                    place = "one object" if "resourceNames" in rule else where
                    yield Permission(identity, f"{name}: {verb}", place, frozenset(limits))


def limiting(objects: Iterable[Manifest], resource: str, verb: str) -> Iterator[str]:
    """Yield the policies of the chart that a request of the agent must pass."""
    for each in objects:
        if each["kind"] == "ValidatingAdmissionPolicy":
            for rule in each["spec"]["matchConstraints"]["resourceRules"]:
                if resource in rule["resources"] and OPERATIONS.get(verb) in rule["operations"]:
                    yield each["metadata"]["name"].partition("-")[2]


def without_policies(permissions: Iterable[Permission]) -> set[Permission]:
    return {each._replace(policies=frozenset()) for each in permissions}


def test_the_settings_of_the_table_are_known() -> None:
    assert set(documented()) == set(SETTINGS)


@pytest.mark.parametrize("setting", SETTINGS)
def test_security_names_every_permission(setting: str) -> None:
    rows = documented()
    wanted = rows[ALWAYS] | rows[UNINSTALL] | rows[setting]
    if setting in IMPLIED:
        wanted |= rows[IMPLIED[setting]]
    assert granted(SETTINGS[setting]) == wanted


def test_without_the_job_there_is_no_identity_of_it() -> None:
    assert granted({"uninstall": {"enabled": False}}) == documented()[ALWAYS]


@pytest.mark.parametrize("setting", SETTINGS)
def test_without_the_admission_policies_nothing_limits_the_agent(setting: str) -> None:
    off = SETTINGS[setting] | {"admissionPolicy": {"enabled": False}}
    assert granted(off) == without_policies(granted(SETTINGS[setting]))


def test_what_the_policies_hold_is_said_to_need_them() -> None:
    """Rows about a token that writes more than Events name the policies."""
    writes = [
        (can, cannot)
        for can, cannot, _ in table(SECURITY[SECURITY.index("### The API server") :], "| can |")
        if can.startswith("a token, with ") or "not bound" in can
    ]
    assert len(writes) == 3
    assert all("with the admission policies: " in cannot for _, cannot in writes)


def test_the_readme_of_the_chart_names_every_permission_of_the_agent() -> None:
    found = set()
    for permission, _ in table((CHART / "README.md").read_text(), "| permission | purpose |"):
        resource, _, verbs = permission.partition(": ")
        resource = "configmaps" if resource == "one ConfigMap" else resource
        found |= {f"{resource}: {verb}" for verb in verbs.split(", ")}
    wanted = {
        re.sub(r"^([a-z/]+)\.[^:]+:", r"\1:", each.what)
        for rows in documented().values()
        for each in rows
        if each.identity == "agent" and not each.what.startswith("role ")
    }
    assert found == wanted
