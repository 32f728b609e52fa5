# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Privileges of the chart's objects: mounts, capabilities, permissions; probes by kubelet."""

from collections.abc import Iterator

import pytest
import yaml

from controller.config.sections.kubernetes_capacity import RESOURCES, Dialect
from tests.deploy.chart import CASES, Case, Manifest, find, render, rendered
from tools.chart.__main__ import CHART

every_case = pytest.mark.parametrize("case", CASES[::2], ids=lambda case: case.name)

# The directories of the host that the agent mounts: always, and with a value of the chart.
HOST_PATHS = {"/sys/fs/cgroup", "/run/sweetpoint", "/var/lib/sweetpoint"}
OPTIONAL_PATHS = {"resctrl": "/sys/fs/resctrl", "nri": "/var/run/nri"}
CAPABILITIES = {
    *("BPF", "PERFMON", "NET_ADMIN", "SYS_RESOURCE", "SYS_PTRACE", "SYS_NICE"),
    *("DAC_OVERRIDE", "DAC_READ_SEARCH", "KILL"),
}
WATCHED = {"get", "list", "watch"}
ALWAYS = {"pods": {"list", "watch"}, "nodes": WATCHED, "events": {"create", "patch"}}


def values_of(case: Case) -> Manifest:
    """Return the values file of *case*."""
    found = yaml.safe_load((CHART / "ci" / f"{case.name}-values.yaml").read_text())
    assert isinstance(found, dict)
    return found


def pod_spec(case: Case, kind: str = "DaemonSet") -> Manifest:
    """Return the specification of the pods of *kind*."""
    found = find(rendered(case), kind)["spec"]["template"]["spec"]
    assert isinstance(found, dict)
    return found


def agents(case: Case, kind: str) -> Manifest:
    """Return the object of *kind* with the name of the DaemonSet."""
    name = find(rendered(case), "DaemonSet")["metadata"]["name"]
    (found,) = (
        each for each in rendered(case) if each["kind"] == kind and each["metadata"]["name"] == name
    )
    return found


def agent(case: Case) -> Manifest:
    """Return the agent's container, which is the only one."""
    (found,) = pod_spec(case)["containers"]
    assert "initContainers" not in pod_spec(case)
    assert isinstance(found, dict)
    return found


@every_case
def test_mounted_directories_of_the_host(case: Case) -> None:
    paths = {each["hostPath"]["path"] for each in pod_spec(case)["volumes"] if "hostPath" in each}
    values = values_of(case)
    assert paths == HOST_PATHS | {
        path for value, path in OPTIONAL_PATHS.items() if values.get(value)
    }
    mounts = {each["name"]: each for each in agent(case)["volumeMounts"]}
    assert set(mounts) == {each["name"] for each in pod_spec(case)["volumes"]}
    assert not any("mountPropagation" in each for each in mounts.values())
    for volume in pod_spec(case)["volumes"]:
        if "configMap" in volume or "secret" in volume:
            assert mounts[volume["name"]]["readOnly"]


@every_case
def test_capabilities(case: Case) -> None:
    context = agent(case)["securityContext"]
    assert context["readOnlyRootFilesystem"]
    assert any("emptyDir" in each for each in pod_spec(case)["volumes"])
    wanted = values_of(case).get("seLinuxOptions", {"type": "spc_t"})
    assert context.get("seLinuxOptions", {}) == wanted
    if values_of(case).get("securityProfile") == "privileged":
        assert context["privileged"]
        assert "capabilities" not in context
        return
    assert not context["privileged"]
    assert not context["allowPrivilegeEscalation"]
    assert context["capabilities"]["drop"] == ["ALL"]
    network = "network" in values_of(case).get("config", {})
    wanted = CAPABILITIES | {"SYS_ADMIN"} if network else CAPABILITIES
    assert set(context["capabilities"]["add"]) == wanted
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def lines_without_reason() -> Iterator[str]:
    """Yield capabilities and mounts without a comment on their line or before it."""
    before = ""
    for line in (CHART / "templates" / "_security.tpl").read_text().splitlines():
        text = line.strip()
        capability = text.startswith("- ") and text[2:3].isupper()
        if (capability and "#" not in text) or (
            text.startswith("- name:")
            and "mountPath" not in before
            and not before.startswith("#")
            and "volumes" not in before
        ):
            yield text
        before = text
        if text.startswith('{{- define "sweetpoint.volumes"'):
            return


def test_every_capability_and_mount_has_a_reason() -> None:
    assert list(lines_without_reason()) == []


@every_case
def test_the_hosts_namespaces(case: Case) -> None:
    spec = pod_spec(case)
    network = "network" in values_of(case).get("config", {})
    assert (spec["hostPID"], spec["hostNetwork"]) == (True, network)
    assert "hostIPC" not in spec
    assert spec["dnsPolicy"] == ("ClusterFirstWithHostNet" if network else "ClusterFirst")
    assert spec["enableServiceLinks"] is False


@every_case
def test_scheduling_and_updates(case: Case) -> None:
    spec = find(rendered(case), "DaemonSet")["spec"]
    assert spec["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == "10%"
    assert (spec["minReadySeconds"], spec["revisionHistoryLimit"]) == (10, 3)
    pod = pod_spec(case)
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["terminationGracePeriodSeconds"] == 30
    assert pod["nodeSelector"]["kubernetes.io/os"] == "linux"
    environment = {each["name"]: each for each in agent(case)["env"]}
    assert {"NODE_NAME", "POD_UID", "POD_NAMESPACE"} <= set(environment)


@every_case
def test_only_nodes_that_can_run_the_agent(case: Case) -> None:
    affinity = pod_spec(case)["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    left_out = {
        (each["key"], *each["values"])
        for each in term["matchExpressions"]
        if each["operator"] == "NotIn"
    }
    assert left_out == {
        ("sweetpoint.dev/agent", "off"),
        ("eks.amazonaws.com/compute-type", "fargate"),
        ("type", "virtual-kubelet"),
    }
    others = [each for each in term["matchExpressions"] if each["operator"] != "NotIn"]
    assert others == values_of(case).get("nodeRequirements", [])


@every_case
def test_the_pages_are_closed_to_other_pods_unless_permitted(case: Case) -> None:
    http = values_of(case).get("http", {})
    policies = [each for each in rendered(case) if each["kind"] == "NetworkPolicy"]
    if not http.get("unprotected"):
        pods = ["DaemonSet", "Deployment"] if has_rollout(case) else ["DaemonSet"]
        selectors = [find(rendered(case), kind)["spec"]["selector"] for kind in pods]
        assert [policy["spec"]["podSelector"] for policy in policies] == selectors
        for policy in policies:
            assert policy["spec"]["policyTypes"] == ["Ingress"]
            assert len(policy["spec"]["ingress"]) == (
                "from" in values_of(case).get("networkPolicy", {})
            )


def test_evictions_and_taints_have_a_priority_level_of_their_own() -> None:
    case = next(each for each in CASES if each.name == "enforce")
    schema = find(rendered(case), "FlowSchema")["spec"]
    level = find(rendered(case), "PriorityLevelConfiguration")
    assert schema["priorityLevelConfiguration"] == {"name": level["metadata"]["name"]}
    # At least one seat is left, also of a level with one seat.
    assert level["spec"]["limited"]["lendablePercent"] < 50
    (rule,) = schema["rules"]
    (subject,) = rule["subjects"]
    assert subject["serviceAccount"]["name"] == pod_spec(case)["serviceAccountName"]
    rules = granted(rule["resourceRules"])
    # Those of the role that must not wait behind lists and Events.
    assert rules == {"pods/eviction": {"create"}, "nodes": {"get", "patch"}}
    role = granted(agents(case, "ClusterRole")["rules"])
    assert all(verbs <= role[resource] for resource, verbs in rules.items())
    kinds = {each["kind"] for each in render({})}
    assert "FlowSchema" not in kinds


def test_switches_for_platforms() -> None:
    case = next(each for each in CASES if each.name == "platforms")
    quota = find(rendered(case), "ResourceQuota")["spec"]
    assert quota["hard"] == {"pods": "300"}
    (scope,) = quota["scopeSelector"]["matchExpressions"]
    assert scope["values"] == [pod_spec(case)["priorityClassName"]]
    binding = find(rendered(case), "RoleBinding", "-scc")
    assert binding["roleRef"]["name"] == "system:openshift:scc:privileged"
    (subject,) = binding["subjects"]
    assert subject["name"] == pod_spec(case)["serviceAccountName"]
    kinds = {(each["kind"], each["metadata"]["name"]) for each in render({})}
    assert not {("ResourceQuota", "sweetpoint"), ("RoleBinding", "sweetpoint-scc")} & kinds


@every_case
def test_kubelet_probes_the_health_pages_by_http(case: Case) -> None:
    container = agent(case)
    pages = {
        probe: container[probe]["httpGet"]["path"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert pages == {
        "startupProbe": "/healthz",
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
    }
    # The time-outs of the guardian: two minutes for a new agent, ten seconds for a silent one.
    start, live = container["startupProbe"], container["livenessProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 120
    assert live["periodSeconds"] * live["failureThreshold"] > 10


def has_rollout(case: Case) -> bool:
    return bool(values_of(case).get("rollout", {}).get("enabled"))


def granted(rules: list[Manifest]) -> dict[str, set[str]]:
    """Return the verbs of each resource in *rules*."""
    found: dict[str, set[str]] = {}
    for rule in rules:
        assert "nonResourceURLs" not in rule
        for resource in rule["resources"]:
            assert resource not in found
            found[resource] = set(rule["verbs"])
    return found


@every_case
def test_permissions(case: Case) -> None:
    kubernetes = values_of(case).get("config", {}).get("kubernetes", {})
    wanted = dict(ALWAYS)
    if has_rollout(case):
        wanted |= {"nodes": WATCHED | {"patch"}}
    if "eviction" in kubernetes:
        wanted |= {"nodes": WATCHED | {"patch"}}
        if kubernetes["eviction"]["enabled"]:
            wanted |= {"pods/eviction": {"create"}}
    if "capacity" in kubernetes:
        wanted |= {"nodes/status": {"patch"}}
    if kubernetes.get("service_profiles", "none") != "none":
        wanted |= {"serviceprofiledescriptors": {"list", "watch"}}
    assert granted(agents(case, "ClusterRole")["rules"]) == wanted
    (profiles,) = agents(case, "Role")["rules"]
    assert (profiles["resources"], profiles["verbs"]) == (["configmaps"], ["list", "watch"])
    assert len(profiles["resourceNames"]) == 1


def test_the_agent_writes_nothing_in_the_cluster_by_default_but_events() -> None:
    rules = granted(find(render({"uninstall": {"enabled": False}}), "ClusterRole")["rules"])
    assert rules == ALWAYS


def test_the_pairs_of_trials_need_a_right_of_their_own() -> None:
    values = {"uninstall": {"enabled": False}, "config": {"trial": {"publish": True}}}
    rules = granted(find(render(values), "ClusterRole")["rules"])
    assert rules == ALWAYS | {"nodes": WATCHED | {"patch"}}


def test_a_feature_that_was_switched_off_can_still_be_cleaned_up() -> None:
    off = {"eviction": {"enabled": False}, "capacity": {"enabled": False}}
    values = {"uninstall": {"enabled": False}, "config": {"kubernetes": off}}
    rules = granted(find(render(values), "ClusterRole")["rules"])
    assert rules == ALWAYS | {"nodes": WATCHED | {"patch"}, "nodes/status": {"patch"}}


@every_case
def test_the_identity_of_the_uninstallation_exists_only_while_it_runs(case: Case) -> None:
    found = [each for each in rendered(case) if each["metadata"]["name"].endswith("-uninstall")]
    if not values_of(case).get("uninstall", {}).get("enabled", True):
        assert found == []
        return
    weights = {}
    for each in found:
        annotations = each["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "pre-delete"
        policy = annotations["helm.sh/hook-delete-policy"]
        assert policy == "before-hook-creation,hook-succeeded"
        weights[each["kind"]] = int(annotations.get("helm.sh/hook-weight", 0))
    identity = {"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    assert set(weights) == identity | {"Job"}
    assert all(weights[kind] < weights["Job"] for kind in identity)
    rules = {each["kind"]: each["rules"] for each in found if "rules" in each}
    assert granted(rules["Role"]) == {"daemonsets": {"get", "patch"}, "pods": {"list"}}
    nodes = {"nodes": {"get", "list", "patch"}, "nodes/status": {"patch"}}
    assert granted(rules["ClusterRole"]) == nodes
    assert rules["Role"][0]["resourceNames"] == [
        find(rendered(case), "DaemonSet")["metadata"]["name"]
    ]


@pytest.mark.parametrize("dialect", [*Dialect, None])
def test_the_policy_admits_the_published_resources(dialect: Dialect | None) -> None:
    capacity = {"enabled": True, "names": str(dialect)} if dialect else {"enabled": False}
    values = {"config": {"kubernetes": {"capacity": capacity}}}
    policy = find(render(values), "ValidatingAdmissionPolicy", "-nodes")["spec"]
    published = f"r in {list(RESOURCES[dialect]) if dialect else []}\n"
    removed = f"r in {[name for names in RESOURCES.values() for name in names]}\n"
    lines = "".join(
        f"{each['expression']}\n".replace(" ||", "\n") for each in policy["validations"]
    )
    assert (lines.count(published), lines.count(removed)) == (2, 2)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_wildcards_anywhere(case: Case) -> None:
    for each in rendered(case):
        for rule in each.get("rules") or ():
            assert "*" not in {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert not {"secrets", "nodes/proxy"} & set(rule["resources"])


@every_case
def test_every_binding_has_a_role_and_a_subject_of_the_chart(case: Case) -> None:
    names = {(each["kind"], each["metadata"]["name"]) for each in rendered(case)}
    for each in rendered(case):
        if each["kind"].endswith("RoleBinding"):
            role = each["roleRef"]["kind"], each["roleRef"]["name"]
            # OpenShift has the role that permits the use of an SCC.
            assert role in names or role == ("ClusterRole", "system:openshift:scc:privileged")
            (subject,) = each["subjects"]
            assert (subject["kind"], subject["name"]) in names
        if each["kind"] == "ValidatingAdmissionPolicyBinding":
            assert ("ValidatingAdmissionPolicy", each["spec"]["policyName"]) in names
            assert each["spec"]["validationActions"] == ["Deny"]
    if "admissionPolicy" not in values_of(case):
        user = "system:serviceaccount:node-agents:"
        evicting = "pods/eviction" in granted(agents(case, "ClusterRole")["rules"])
        for part in ("-nodes", "-evictions", "-evicted-pods")[: 3 if evicting else 2]:
            policy = find(rendered(case), "ValidatingAdmissionPolicy", part)["spec"]
            condition = policy["matchConditions"][0]
            assert f"'{user}{pod_spec(case)['serviceAccountName']}'" in condition["expression"]
            # The parameters of the last one are read for evictions by all clients.
            assert policy["failurePolicy"] == ("Ignore" if part == "-evicted-pods" else "Fail")


def test_the_uninstall_job_has_no_access_to_the_host() -> None:
    spec = pod_spec(CASES[0], "Job") if CASES[0].name != "bare" else pod_spec(CASES[2], "Job")
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "volumes" not in spec
    assert not {"hostPID", "hostNetwork"} & set(spec)
