# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The values of the Helm chart: names, types, defaults and descriptions.

``values.yaml``, its schema and the table in the README are generated from this module. The
models of the agent's configuration and profiles are those of the agent, so Helm refuses the
same values as the agent.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from controller.config.fields import raw_default
from controller.config.models import ConfigModel, ProfileModel
from controller.core.model import Mode

__all__ = ("ChartValues",)

_Text = dict[str, str]
_NAME = r"^([a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?)?$"
# The address is inserted into YAML without quotes, followed by # and the name of the alert.
_ADDRESS = r"^(https?://[A-Za-z0-9._~:/?&=%+-]+)?$"
_DIGEST = r"^(sha256:[0-9a-f]{64})?$"


class _Values(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SecurityProfile(StrEnum):
    """How the container gets its capabilities."""

    PRIVILEGED = "privileged"
    CAPABILITIES = "capabilities"


class ImageValues(_Values):
    """The image, and when it is pulled."""

    repository: str = Field(
        default="sweetpoint", min_length=1, description="registry and name of the image"
    )
    tag: str = Field(default="", description="empty: the chart's `appVersion`")
    digest: str = Field(
        default="", pattern=_DIGEST, description="`sha256:...`; takes precedence over the tag"
    )
    pull_policy: str = Field(
        default="IfNotPresent",
        alias="pullPolicy",
        pattern="^(IfNotPresent|Always|Never)$",
        description="when kubelet pulls the image",
    )
    pull_secrets: list[str] = Field(
        default=[], alias="pullSecrets", description="names of Secrets for the registry"
    )


class HttpValues(_Values):
    """Address of `/`, the page for people, `/metrics`, `/statusz`, `/healthz` and `/readyz`."""

    host: str = Field(
        default="0.0.0.0",  # noqa: S104 - in the pod's own network
        min_length=1,
        description="address to listen on; on the host's network any other address than "
        "`127.0.0.1` needs a token",
    )
    port: int = Field(default=9464, ge=1, le=65535, description="port to listen on")
    token_secret: str = Field(
        default="",
        alias="tokenSecret",
        description="Secret with the bearer token that `/`, `/metrics` and `/statusz` then require",
    )
    token_key: str = Field(
        default="token", alias="tokenKey", description="key of the token in the Secret"
    )
    unprotected: bool = Field(
        default=False,
        description="permit pages that neither a token nor a NetworkPolicy protects: every client "
        "that reaches the pod reads the names of all pods of the node, and which one hurts which",
    )


class ResctrlValues(_Values):
    """Memory bandwidth and cache ways."""

    mount: bool = Field(
        default=False,
        description="mount the host's `/sys/fs/resctrl` in the pod; the host must have it mounted",
    )


class PodMonitorValues(_Values):
    """Scraping by the Prometheus operator."""

    enabled: bool = Field(
        default=True, description="create a PodMonitor if the cluster has its API"
    )
    interval: str = Field(default="15s", description="time between two scrapes")
    sample_limit: int = Field(
        default=50_000,
        ge=1,
        alias="sampleLimit",
        description="maximum number of samples of one scrape",
    )
    labels: _Text = Field(default={}, description="labels by which your Prometheus selects it")


class GuardedValues(_Values):
    """An object that is only created if the cluster has the API of the Prometheus operator."""

    enabled: bool = Field(
        default=True, description="create it if the cluster has the Prometheus operator's API"
    )
    labels: _Text = Field(
        default={}, description="labels by which your Prometheus or Grafana selects it"
    )


class PrometheusRuleValues(GuardedValues):
    """The alerts, for the Prometheus operator."""

    runbook_url: str = Field(
        default="",
        alias="runbookUrl",
        pattern=_ADDRESS,
        description="URL of your copy of docs/RUNBOOK.md, for the links of the alerts; empty: its "
        "path in the sources",
    )


class DashboardValues(GuardedValues):
    """The dashboard, as a ConfigMap for Grafana's sidecar."""

    labels: _Text = Field(
        default={"grafana_dashboard": "1"}, description="labels by which the sidecar selects it"
    )


class NetworkPolicyValues(_Values):
    """Peers that may connect to the pod; without effect on the host's network."""

    enabled: bool = Field(
        default=True, description="admit connections only from `from` and from the node itself"
    )
    sources: list[dict[str, Any]] = Field(
        default=[],
        alias="from",
        description="peers (NetworkPolicyPeer) that may scrape, such as the namespace of your "
        "Prometheus; empty: none",
    )


class AdmissionPolicyValues(_Values):
    """Limits on the agents' permissions that RBAC cannot express."""

    enabled: bool = Field(
        default=True,
        description="an agent may patch only its own node, there only fields of its own, and "
        "evict only pods of that node",
    )


class FlowSchemaValues(_Values):
    """Evictions and taints do not wait behind Events and lists at a busy API server."""

    enabled: bool = Field(
        default=True,
        description="create a FlowSchema and its priority level, with `config.kubernetes.eviction`",
    )


class ResourceQuotaValues(_Values):
    """A ResourceQuota for the priority class, without which GKE refuses the pods."""

    enabled: bool = Field(
        default=False,
        description="create it; for clusters that restrict `system-node-critical` (GKE)",
    )
    pods: int = Field(
        default=5000,
        ge=1,
        description="maximum number of pods of this priority class in the namespace",
    )


class OpenShiftValues(_Values):
    """Security context constraints of OpenShift."""

    enabled: bool = Field(
        default=False,
        description="bind the SCC `privileged`, which both security profiles need there",
    )


class UninstallValues(_Values):
    """The Job that runs before the chart's objects are deleted."""

    enabled: bool = Field(
        default=True, description="stop all agents first, while they still have their permissions"
    )
    timeout_seconds: int = Field(
        default=300,
        ge=30,
        le=3600,
        alias="timeoutSeconds",
        description="time after which the Job fails",
    )


class ServiceAccountValues(_Values):
    """The agent's identity."""

    annotations: _Text = Field(default={}, description="annotations of the ServiceAccount")


class ChartValues(_Values):
    """All values."""

    image: ImageValues = ImageValues()
    fullname_override: str = Field(
        default="",
        alias="fullnameOverride",
        pattern=_NAME,
        description="name of every object; empty: from release and chart",
    )
    mode: Mode = Field(
        default=Mode.OBSERVE,
        description="`observe`: only report what would be written; `enforce`: write knobs",
    )
    security_profile: SecurityProfile = Field(
        default=SecurityProfile.CAPABILITIES,
        alias="securityProfile",
        description="`capabilities`: only those in templates/_security.tpl; `privileged` for nodes "
        "whose kernel or LSM refuses the probes otherwise",
    )
    se_linux_options: _Text = Field(
        default={"type": "spc_t"},
        alias="seLinuxOptions",
        description="SELinux context (SELinuxOptions); `container_t` may neither use BPF nor write "
        "to cgroups. No effect without SELinux",
    )
    config: Annotated[
        ConfigModel,
        Field(description="the agent's configuration, without the keys that the chart sets"),
    ] = raw_default({})
    profiles: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")], ProfileModel] = (
        Field(default={}, description="profiles by name, each as in a profile file without `name`")
    )
    http: HttpValues = HttpValues()
    resctrl: ResctrlValues = ResctrlValues()
    pod_monitor: PodMonitorValues = Field(default=PodMonitorValues(), alias="podMonitor")
    prometheus_rule: PrometheusRuleValues = Field(
        default=PrometheusRuleValues(), alias="prometheusRule"
    )
    dashboard: DashboardValues = DashboardValues()
    network_policy: NetworkPolicyValues = Field(
        default=NetworkPolicyValues(), alias="networkPolicy"
    )
    admission_policy: AdmissionPolicyValues = Field(
        default=AdmissionPolicyValues(), alias="admissionPolicy"
    )
    flow_schema: FlowSchemaValues = Field(default=FlowSchemaValues(), alias="flowSchema")
    resource_quota: ResourceQuotaValues = Field(
        default=ResourceQuotaValues(), alias="resourceQuota"
    )
    openshift: OpenShiftValues = OpenShiftValues()
    uninstall: UninstallValues = UninstallValues()
    service_account: ServiceAccountValues = Field(
        default=ServiceAccountValues(), alias="serviceAccount"
    )
    max_unavailable: Annotated[str, Field(pattern=r"^[1-9][0-9]?%$|^100%$")] = Field(
        default="10%",
        alias="maxUnavailable",
        description="maximum share of nodes without agent during an update",
    )
    priority_class_name: str = Field(
        default="system-node-critical",
        alias="priorityClassName",
        description="this class is evicted last",
    )
    node_selector: _Text = Field(
        default={},
        alias="nodeSelector",
        description="in addition to Linux; for canaries a label of your own",
    )
    node_requirements: list[dict[str, Any]] = Field(
        default=[],
        alias="nodeRequirements",
        description="further conditions (NodeSelectorRequirement) that all must hold, for example "
        "to leave out nodes that `sweetpoint doctor` reports as unsupported; virtual nodes "
        "(Fargate, virtual-kubelet) and nodes labelled `sweetpoint.dev/agent=off` are always "
        "left out",
    )
    tolerations: list[dict[str, Any]] = Field(
        default=[{"operator": "Exists"}], description="by default all taints are tolerated"
    )
    resources: dict[str, Any] = Field(
        default={
            "requests": {"cpu": "100m", "memory": "320Mi"},
            "limits": {"memory": "320Mi"},
        },
        description="compiling the probes takes 160 MiB for a second; without CPU limit, because "
        "a throttled agent reacts late",
    )
    pod_annotations: _Text = Field(
        default={}, alias="podAnnotations", description="annotations of the pods"
    )
    pod_labels: _Text = Field(default={}, alias="podLabels", description="labels of the pods")
    extra_env: list[dict[str, Any]] = Field(
        default=[], alias="extraEnv", description="additional environment variables (EnvVar)"
    )
    globals_: dict[str, Any] = Field(
        default={}, alias="global", description="required by Helm; not used"
    )
