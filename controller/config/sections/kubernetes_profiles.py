# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The section ``kubernetes.profiles:``, where profiles come from and which pod gets which."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
import os
from pathlib import Path
import re
from typing import Annotated

from pydantic import Field

from controller.config.fields import Strict, written
from controller.config.yaml_document import Loc

__all__ = (
    "AUTO",
    "NAMESPACE",
    "KubeProfilesConfig",
    "KubeProfilesModel",
    "ProfileRule",
    "build_kube_profiles",
    "kube_profiles_misfits",
)

AUTO = "auto"
# As the API server takes it (RFC 1123 label).
NAMESPACE = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_OBJECT = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
_PROFILE = r"^[a-z0-9][a-z0-9.-]{0,62}$"
_LABEL_KEY = r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
_LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"
# Every container finds the namespace of its own pod here.
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_Profile = Annotated[str, Field(pattern=_PROFILE)]
_Namespace = Annotated[str, Field(pattern=NAMESPACE)]


class ProfileRuleModel(Strict):
    """Who gets ``profile``: pods to which everything applies that is given."""

    profile: _Profile
    namespace: _Namespace | None = None
    labels: Annotated[
        dict[
            Annotated[str, Field(pattern=_LABEL_KEY)],
            Annotated[str, Field(pattern=_LABEL_VALUE)],
        ],
        Field(max_length=16),
    ] = written({})
    service_account: Annotated[str, Field(pattern=_OBJECT)] | None = None


class KubeProfilesModel(Strict):
    """Profiles from a ConfigMap, and which pod gets which profile."""

    config_map: Annotated[str, Field(pattern=_OBJECT)] | None = None
    namespace: str = AUTO
    default: _Profile = "default"
    rules: Annotated[list[ProfileRuleModel], Field(max_length=256)] = written([])
    match_apps: bool = True
    allow: Annotated[
        dict[_Profile, Annotated[list[_Namespace], Field(max_length=256)]], Field(max_length=256)
    ] = written({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRule:
    """A pod of ``namespace`` and ``service_account`` (empty: any) with ``labels``."""

    profile: str
    namespace: str = ""
    service_account: str = ""
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeProfilesConfig:
    """The checked section.

    ``config_map`` is (namespace, name), ``None`` without one. The first of ``rules`` that applies
    counts. With ``match_apps`` a pod of an app that has a profile of its name gets that. From
    other namespaces than those in ``allow`` a profile that is in there cannot be chosen.
    """

    config_map: tuple[str, str] | None = None
    default: str = "default"
    rules: tuple[ProfileRule, ...] = ()
    match_apps: bool = True
    allow: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def label_keys(self) -> frozenset[str]:
        """The labels that rules look at."""
        return frozenset(key for rule in self.rules for key, _ in rule.labels)


def build_kube_profiles(model: KubeProfilesModel) -> KubeProfilesConfig:
    """Return the checked section; see ``kube_profiles_misfits`` for what may be wrong."""
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


def kube_profiles_misfits(model: KubeProfilesModel) -> Iterator[tuple[Loc, str]]:
    """Name what does not fit together, by its place in the section."""
    if model.config_map is not None and not re.fullmatch(NAMESPACE, _namespace(model)):
        found = (
            " (auto: neither POD_NAMESPACE nor the pod's own)" if model.namespace == AUTO else ""
        )
        yield ("namespace",), f"{_namespace(model)[:64]!r} is not the name of a namespace{found}"
    for index, rule in enumerate(model.rules):
        if not (rule.namespace or rule.labels or rule.service_account):
            yield ("rules", index), "applies to every pod; that is what default is for"
        if rule.service_account and not rule.namespace:
            text = "needs the namespace: others may have a service account of that name"
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
