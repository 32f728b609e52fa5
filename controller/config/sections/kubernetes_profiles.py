# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``kubernetes.profiles:``: the ConfigMap of profiles and their selection by pods."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
import os
from pathlib import Path
import re
from typing import Annotated

from pydantic import Field

from controller.config.fields import Strict, raw_default
from controller.config.label_selector import LABEL_KEY, LABEL_VALUE
from controller.config.yaml_document import Loc

__all__ = (
    "AUTO",
    "NAMESPACE",
    "PROFILE",
    "KubeProfilesConfig",
    "KubeProfilesModel",
    "ProfileRule",
    "build_kube_profiles",
    "find_kube_profiles_conflicts",
)

AUTO = "auto"
# A name of a namespace that the API server accepts (RFC 1123 label).
NAMESPACE = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_OBJECT = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
PROFILE = r"^[a-z0-9][a-z0-9.-]{0,62}$"
# kubelet mounts the namespace of the pod here in every container.
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_Profile = Annotated[str, Field(pattern=PROFILE)]
_Namespace = Annotated[str, Field(pattern=NAMESPACE)]


class ProfileRuleModel(Strict):
    """A rule that selects ``profile`` for pods that match all given conditions."""

    profile: _Profile
    """Profile that matching pods get."""
    namespace: _Namespace | None = None
    """Namespace of the pod; without it any."""
    labels: Annotated[
        dict[
            Annotated[str, Field(pattern=LABEL_KEY)],
            Annotated[str, Field(pattern=LABEL_VALUE)],
        ],
        Field(max_length=16),
    ] = raw_default({})
    """Labels that the pod must have, each with this value; pods' owners set them."""
    service_account: Annotated[str, Field(pattern=_OBJECT)] | None = None
    """Service account of the pod; needs a namespace."""


class KubeProfilesModel(Strict):
    """Profiles from a ConfigMap, and the selection of profiles for pods."""

    config_map: Annotated[str, Field(pattern=_OBJECT)] | None = None
    """Name of the ConfigMap whose keys NAME.yaml are profiles; without it there is none."""
    namespace: str = AUTO
    """Namespace of the ConfigMap; auto is that of the agent."""
    default: _Profile = "default"
    """Profile of latency-sensitive pods that nothing else selects one for."""
    rules: Annotated[list[ProfileRuleModel], Field(max_length=256)] = raw_default([])
    """Rules that select a profile for pods; the first match wins, and pods cannot override it."""
    match_apps: bool = True
    """Whether a pod whose app or image has the name of a profile gets that profile."""
    allow: Annotated[
        dict[_Profile, Annotated[list[_Namespace], Field(max_length=256)]], Field(max_length=256)
    ] = raw_default({})
    """Namespaces from which a pod may select a profile, by profile; one that evicts needs an
    entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRule:
    """Selects ``profile`` for pods of ``namespace`` and ``service_account`` with all ``labels``.

    An empty namespace or service account matches any.
    """

    profile: str
    namespace: str = ""
    service_account: str = ""
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeProfilesConfig:
    """The checked section.

    ``config_map`` is (namespace, name), or ``None``. The first of ``rules`` that matches a pod
    applies. With ``match_apps``, a pod whose app has the name of a profile gets that profile.
    ``allow`` maps a profile to the only namespaces from which it can be selected; profiles that
    are not in ``allow`` can be selected from all namespaces, or from none if they enable evictions.
    """

    config_map: tuple[str, str] | None = None
    default: str = "default"
    rules: tuple[ProfileRule, ...] = ()
    match_apps: bool = True
    allow: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def label_keys(self) -> frozenset[str]:
        """The keys of the labels that rules match."""
        return frozenset(key for rule in self.rules for key, _ in rule.labels)


def build_kube_profiles(model: KubeProfilesModel) -> KubeProfilesConfig:
    """Return the checked section; ``find_kube_profiles_conflicts`` returns its conflicts."""
    name = model.config_map
    return KubeProfilesConfig(
        config_map=None if name is None else (_namespace(model), name),
        default=model.default,
        rules=tuple(
            ProfileRule(
                profile=rule.profile,
                namespace=rule.namespace or "",
                service_account=rule.service_account or "",
                labels=tuple(sorted(rule.labels.items())),
            )
            for rule in model.rules
        ),
        match_apps=model.match_apps,
        allow={profile: frozenset(names) for profile, names in model.allow.items()},
    )


def find_kube_profiles_conflicts(model: KubeProfilesModel) -> Iterator[tuple[Loc, str]]:
    """Yield conflicts in *model*, each by its place in the section."""
    if model.config_map is not None and not re.fullmatch(NAMESPACE, _namespace(model)):
        found = (
            " (auto: neither POD_NAMESPACE nor a service account is there)"
            if model.namespace == AUTO
            else ""
        )
        yield ("namespace",), f"{_namespace(model)[:64]!r} is not the name of a namespace{found}"
    for index, rule in enumerate(model.rules):
        if not (rule.namespace or rule.labels or rule.service_account):
            yield ("rules", index), "has no condition; for all pods set default instead"
        if rule.service_account and not rule.namespace:
            text = "needs namespace: other namespaces can have a service account of this name"
            yield ("rules", index, "service_account"), text


def _namespace(model: KubeProfilesModel) -> str:
    if model.namespace != AUTO:
        return model.namespace
    if found := os.environ.get("POD_NAMESPACE"):
        return found
    try:
        return _OWN_NAMESPACE.read_text(encoding="ascii")[:256].strip()
    except (OSError, UnicodeDecodeError):
        return ""
