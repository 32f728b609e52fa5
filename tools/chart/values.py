# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The values of the Helm chart: names, types, defaults and descriptions.

``values.yaml``, its schema and the table in the README are generated from this module. The
models of the agent's configuration and profiles are those of the agent, so Helm refuses the
same values as the agent.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from controller.config.fields import Described, raw_default
from controller.config.models import ConfigModel, ProfileModel
from controller.core.model import Mode
from controller.rollout.spec import RolloutModel

__all__ = ("ChartValues",)

_Text = dict[str, str]
_NAME = r"^([a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?)?$"
# The address is inserted into YAML without quotes, followed by # and the name of the alert.
_ADDRESS = r"^(https?://[A-Za-z0-9._~:/?&=%+-]+)?$"
_DIGEST = r"^(sha256:[0-9a-f]{64})?$"


class _Values(Described):
    model_config = ConfigDict(extra="forbid")


class SecurityProfile(StrEnum):
    """How the container gets its capabilities."""

    PRIVILEGED = "privileged"
    CAPABILITIES = "capabilities"


class ImageValues(_Values):
    """The image, and when it is pulled."""

    repository: str = Field(default="")
    """Registry and name of the image, which you build; required, because no registry has one:
    docs/KUBERNETES.md, Quick start."""
    tag: str = Field(default="")
    """Tag of the image; empty: the chart's `appVersion`."""
    digest: str = Field(default="", pattern=_DIGEST)
    """Digest of the image as `sha256:...`; takes precedence over the tag."""
    pull_policy: str = Field(
        default="IfNotPresent", alias="pullPolicy", pattern="^(IfNotPresent|Always|Never)$"
    )
    """When kubelet pulls the image; `Never` for an image that was loaded into each node."""
    pull_secrets: list[str] = Field(default=[], alias="pullSecrets")
    """Names of Secrets for the registry."""


class HttpValues(_Values):
    """Address of `/`, the page for people, `/metrics`, `/statusz`, `/healthz` and `/readyz`."""

    host: str = Field(
        default="0.0.0.0",  # noqa: S104 - in the pod's own network
        min_length=1,
    )
    """Address to listen on; on the host's network any other address than `127.0.0.1` needs a
    token."""
    port: int = Field(default=9464, ge=1, le=65535)
    """Port to listen on."""
    token_secret: str = Field(default="", alias="tokenSecret")
    """Secret with the bearer token that `/`, `/metrics` and `/statusz` then require."""
    token_key: str = Field(default="token", alias="tokenKey")
    """Key of the token in the Secret."""
    unprotected: bool = Field(default=False)
    """Permit pages without token and NetworkPolicy, on which every client reads which pod of the
    node hurts which."""


class ResctrlValues(_Values):
    """Memory bandwidth and cache ways."""

    mount: bool = Field(default=False)
    """Mount the host's `/sys/fs/resctrl` in the pod; the host must have it mounted."""


class NriValues(_Values):
    """New containers, which the container runtime tells the agent before they run."""

    mount: bool = Field(default=False)
    """Mount the runtime's directory `/var/run/nri` in the pod; its socket can change every
    container of the node."""


class PodMonitorValues(_Values):
    """Scraping by the Prometheus operator."""

    enabled: bool = Field(default=True)
    """Create a PodMonitor if the cluster has its API."""
    interval: str = Field(default="15s")
    """Time between two scrapes."""
    sample_limit: int = Field(default=50_000, ge=1, alias="sampleLimit")
    """Maximum number of samples of one scrape."""
    labels: _Text = Field(default={})
    """Labels by which your Prometheus selects it."""


class GuardedValues(_Values):
    """An object that is only created if the cluster has the API of the Prometheus operator."""

    enabled: bool = Field(default=True)
    """Create it if the cluster has the Prometheus operator's API."""
    labels: _Text = Field(default={})
    """Labels by which your Prometheus or Grafana selects it."""


class PrometheusRuleValues(GuardedValues):
    """The alerts and aggregates, for the Prometheus operator."""

    runbook_url: str = Field(default="", alias="runbookUrl", pattern=_ADDRESS)
    """URL of your copy of docs/RUNBOOK.md, for the links of the alerts; empty: its path in the
    sources."""


class DashboardValues(GuardedValues):
    """The dashboards, as a ConfigMap for Grafana's sidecar."""

    labels: _Text = Field(default={"grafana_dashboard": "1"})
    """Labels by which the sidecar selects it."""


class NetworkPolicyValues(_Values):
    """Peers that may connect to the pod; without effect on the host's network."""

    enabled: bool = Field(default=True)
    """Admit connections only from `from` and from the node itself."""
    sources: list[dict[str, Any]] = Field(default=[], alias="from")
    """Peers (NetworkPolicyPeer) that may scrape, such as the namespace of your Prometheus;
    empty: none."""


class AdmissionPolicyValues(_Values):
    """Limits on the agents' permissions that RBAC cannot express."""

    enabled: bool = Field(default=True)
    """Restrict an agent to its own node: it patches only fields of its own there, and evicts
    only pods of that node."""


class FlowSchemaValues(_Values):
    """Evictions and taints do not wait behind Events and lists at a busy API server."""

    enabled: bool = Field(default=True)
    """Create a FlowSchema and its priority level, if `config.kubernetes.eviction` is set."""


class ResourceQuotaValues(_Values):
    """A ResourceQuota for the priority class, without which GKE refuses the pods."""

    enabled: bool = Field(default=False)
    """Create it, for clusters that restrict `system-node-critical`, such as GKE."""
    pods: int = Field(default=5000, ge=1)
    """Maximum number of pods of this priority class in the namespace."""


class OpenShiftValues(_Values):
    """Security context constraints of OpenShift."""

    enabled: bool = Field(default=False)
    """Bind the SCC `privileged`, which both security profiles need there."""


class UninstallValues(_Values):
    """The Job that runs before the chart's objects are deleted."""

    enabled: bool = Field(default=True)
    """Stop all agents before an uninstallation, while they still have their permissions."""
    timeout_seconds: int = Field(default=300, ge=30, le=3600, alias="timeoutSeconds")
    """Time after which the Job fails."""


class RolloutValues(_Values):
    """The controller that judges a profile on canary nodes, and promotes it or rolls it back."""

    enabled: bool = Field(default=False)
    """Run the controller, one pod per cluster, and let agents publish the pairs of a trial."""
    spec: RolloutModel | None = Field(default=None)
    """Candidate, profile that it replaces, canary nodes and criterion: docs/ROLLOUT.md."""


class ServiceAccountValues(_Values):
    """The agent's identity."""

    annotations: _Text = Field(default={})
    """Annotations of the ServiceAccount."""


class ChartValues(_Values):
    """All values."""

    image: ImageValues = ImageValues()
    fullname_override: str = Field(default="", alias="fullnameOverride", pattern=_NAME)
    """Name of every object; empty: from release and chart."""
    mode: Mode = Field(default=Mode.OBSERVE)
    """Whether knobs are written: `observe` only reports what would be written, `enforce` writes
    it."""
    security_profile: SecurityProfile = Field(
        default=SecurityProfile.CAPABILITIES, alias="securityProfile"
    )
    """How the container gets its rights: `capabilities`, or `privileged` for nodes whose kernel
    or LSM refuses the probes otherwise."""
    se_linux_options: _Text = Field(default={"type": "spc_t"}, alias="seLinuxOptions")
    """SELinux context (SELinuxOptions), without effect where SELinux is off; `container_t` may
    neither use BPF nor write to cgroups."""
    config: ConfigModel = raw_default({})
    """The agent's configuration, without the keys that the chart sets."""
    profiles: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")], ProfileModel] = (
        Field(
            default={},
        )
    )
    """Profiles by name, each as in a profile file without `name`."""
    http: HttpValues = HttpValues()
    resctrl: ResctrlValues = ResctrlValues()
    nri: NriValues = NriValues()
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
    rollout: RolloutValues = RolloutValues()
    service_account: ServiceAccountValues = Field(
        default=ServiceAccountValues(), alias="serviceAccount"
    )
    max_unavailable: Annotated[str, Field(pattern=r"^[1-9][0-9]?%$|^100%$")] = Field(
        default="10%", alias="maxUnavailable"
    )
    """Maximum share of nodes without agent during an update."""
    priority_class_name: str = Field(default="system-node-critical", alias="priorityClassName")
    """Priority class of the pods; the default is evicted last."""
    node_selector: _Text = Field(default={}, alias="nodeSelector")
    """Labels of the nodes that get an agent, in addition to Linux; for canaries a label of your
    own."""
    node_requirements: list[dict[str, Any]] = Field(default=[], alias="nodeRequirements")
    """Further conditions (NodeSelectorRequirement) of nodes; virtual nodes and those labelled
    `sweetpoint.dev/agent=off` never get an agent."""
    tolerations: list[dict[str, Any]] = Field(default=[{"operator": "Exists"}])
    """Tolerations of the pods; by default of all taints."""
    resources: dict[str, Any] = Field(
        default={
            "requests": {"cpu": "100m", "memory": "320Mi"},
            "limits": {"memory": "320Mi"},
        }
    )
    """Requests and limits; compiling takes 160 MiB for a second, and a CPU limit would make the
    agent react late."""
    pod_annotations: _Text = Field(default={}, alias="podAnnotations")
    """Annotations of the pods."""
    pod_labels: _Text = Field(default={}, alias="podLabels")
    """Labels of the pods."""
    extra_env: list[dict[str, Any]] = Field(default=[], alias="extraEnv")
    """Additional environment variables (EnvVar)."""
    globals_: dict[str, Any] = Field(default={}, alias="global")
    """Required by Helm and not used."""
