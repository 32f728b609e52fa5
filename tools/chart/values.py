# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The values of the Helm chart: names, types, defaults and what each is for.

``values.yaml``'s schema and the README's table come from here; the agent's own settings and the
profiles come from the agent's models, so Helm refuses what the agent would refuse.
"""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from controller.config.models import ConfigModel, ProfileModel
from controller.core.model import Mode

__all__ = ("ChartValues",)

_Text = dict[str, str]
_NAME = r"^([a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?)?$"
# It is put into YAML as it is, and the alert's name comes behind it.
_ADDRESS = r"^(https?://[A-Za-z0-9._~:/?&=%+-]+)?$"
_DIGEST = r"^(sha256:[0-9a-f]{64})?$"


class _Values(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SecurityProfile(StrEnum):
    """How the container gets its rights."""

    PRIVILEGED = "privileged"
    CAPABILITIES = "capabilities"


class ImageValues(_Values):
    """Which image, and how it is fetched."""

    repository: str = Field("sweetpoint", min_length=1, description="where the image is")
    tag: str = Field("", description="empty: the chart's `appVersion`")
    digest: str = Field("", pattern=_DIGEST, description="`sha256:...`; wins over the tag")
    pull_policy: str = Field(
        "IfNotPresent",
        alias="pullPolicy",
        pattern="^(IfNotPresent|Always|Never)$",
        description="when kubelet asks the registry",
    )
    pull_secrets: list[str] = Field([], alias="pullSecrets", description="names of Secrets")


class HttpValues(_Values):
    """Where `/metrics`, `/statusz`, `/healthz` and `/readyz` are."""

    host: str = Field(
        "0.0.0.0",  # noqa: S104 - in the pod's own network
        min_length=1,
        description="address to listen on; on the host's network anything but `127.0.0.1` needs a "
        "token",
    )
    port: int = Field(9464, ge=1, le=65535, description="port to listen on")
    token_secret: str = Field(
        "",
        alias="tokenSecret",
        description="Secret with the bearer token that `/metrics` and `/statusz` then want",
    )
    token_key: str = Field("token", alias="tokenKey", description="its key")


class ResctrlValues(_Values):
    """Memory bandwidth and cache ways."""

    mount: bool = Field(
        False, description="give the agent the host's `/sys/fs/resctrl`, which must be mounted"
    )


class PodMonitorValues(_Values):
    """Scraping by the Prometheus operator."""

    enabled: bool = Field(True, description="if the cluster has the API")
    interval: str = Field("15s", description="between two scrapes")
    sample_limit: int = Field(
        50_000, ge=1, alias="sampleLimit", description="samples of one node beyond which it fails"
    )
    labels: _Text = Field({}, description="what your Prometheus selects by")


class GuardedValues(_Values):
    """What is there if the Prometheus operator is."""

    enabled: bool = Field(True, description="if the cluster has the Prometheus operator's API")
    labels: _Text = Field({}, description="what your Prometheus or Grafana selects by")


class PrometheusRuleValues(GuardedValues):
    """The alerts, for the Prometheus operator."""

    runbook_url: str = Field(
        "",
        alias="runbookUrl",
        pattern=_ADDRESS,
        description="where your docs/RUNBOOK.md is, for the links of the alerts; empty: they say "
        "its path in the sources",
    )


class DashboardValues(GuardedValues):
    """The dashboard, as a ConfigMap for Grafana's sidecar."""

    labels: _Text = Field({"grafana_dashboard": "1"}, description="what the sidecar selects by")


class NetworkPolicyValues(_Values):
    """Who may connect to the pod; without effect on the host's network."""

    enabled: bool = Field(False, description="let in only `from`, and the node itself")
    sources: list[dict[str, Any]] = Field(
        [], alias="from", description="peers (NetworkPolicyPeer) that may scrape"
    )


class AdmissionPolicyValues(_Values):
    """What RBAC cannot say."""

    enabled: bool = Field(
        True,
        description="an agent may patch only its own node, there only what is its own, and "
        "evict only pods of that node",
    )


class UninstallValues(_Values):
    """Before the chart's objects are deleted."""

    enabled: bool = Field(
        True, description="stop all agents first, while they still have their rights"
    )
    timeout_seconds: int = Field(
        300, ge=30, le=3600, alias="timeoutSeconds", description="how long that may take"
    )


class ServiceAccountValues(_Values):
    """The agent's identity."""

    annotations: _Text = Field({}, description="for the ServiceAccount")


class ChartValues(_Values):
    """All values."""

    image: ImageValues = ImageValues()
    fullname_override: str = Field(
        "", alias="fullnameOverride", pattern=_NAME, description="name of every object"
    )
    mode: Mode = Field(
        Mode.OBSERVE, description="`observe` writes nothing and tells what it would do; `enforce`"
    )
    security_profile: SecurityProfile = Field(
        SecurityProfile.PRIVILEGED,
        alias="securityProfile",
        description="`privileged`, or `capabilities`: only those listed in templates/_security.tpl",
    )
    config: ConfigModel = Field(
        {}, description="the agent's configuration, but for what the chart itself sets"
    )
    profiles: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")], ProfileModel] = (
        Field({}, description="profiles by name, each as in a profile file without `name`")
    )
    http: HttpValues = HttpValues()
    resctrl: ResctrlValues = ResctrlValues()
    pod_monitor: PodMonitorValues = Field(PodMonitorValues(), alias="podMonitor")
    prometheus_rule: PrometheusRuleValues = Field(PrometheusRuleValues(), alias="prometheusRule")
    dashboard: DashboardValues = DashboardValues()
    network_policy: NetworkPolicyValues = Field(NetworkPolicyValues(), alias="networkPolicy")
    admission_policy: AdmissionPolicyValues = Field(
        AdmissionPolicyValues(), alias="admissionPolicy"
    )
    uninstall: UninstallValues = UninstallValues()
    service_account: ServiceAccountValues = Field(ServiceAccountValues(), alias="serviceAccount")
    max_unavailable: Annotated[str, Field(pattern=r"^[1-9][0-9]?%$|^100%$")] = Field(
        "10%", alias="maxUnavailable", description="nodes without an agent during an update"
    )
    priority_class_name: str = Field(
        "system-node-critical", alias="priorityClassName", description="the last to be evicted"
    )
    node_selector: _Text = Field(
        {}, alias="nodeSelector", description="beside Linux; a label of yours for canaries"
    )
    tolerations: list[dict[str, Any]] = Field(
        [{"operator": "Exists"}], description="all nodes, whatever their taints"
    )
    resources: dict[str, Any] = Field(
        {
            "requests": {"cpu": "100m", "memory": "320Mi"},
            "limits": {"memory": "320Mi"},
        },
        description="compiling the probes takes 160 MiB for a second; no limit of CPU, because a "
        "throttled agent is late when it is needed",
    )
    pod_annotations: _Text = Field({}, alias="podAnnotations", description="for the pods")
    pod_labels: _Text = Field({}, alias="podLabels", description="for the pods")
    extra_env: list[dict[str, Any]] = Field(
        [], alias="extraEnv", description="more environment (EnvVar)"
    )
    globals_: dict[str, Any] = Field({}, alias="global", description="Helm's own; not used")
