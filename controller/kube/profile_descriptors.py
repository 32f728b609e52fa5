# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Sweet points from Katalyst's ServiceProfileDescriptors, for the pods of this node that have one.

A pod with a descriptor gets its profile with the descriptor's numbers: another profile, which
exists as long as such a pod is here. It has to be in the settings before a workload has it, so a
pod starts with the profile as it is and gets the other one with the next look.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
import logging
import operator
from typing import Any, NamedTuple

from controller.config.sections.kubernetes import KubernetesConfig, ServiceProfiles
from controller.core.model import QosClass
from controller.core.settings import Profile, Settings
from controller.kube.client.api import Api
from controller.kube.client.rate_limit import RateLimitedLogger
from controller.kube.client.watch import CollectionWatch
from controller.kube.state import DescriptorsState
from controller.workloads.pods.classify import ClassRules, classify
from controller.workloads.pods.descriptor import (
    Descriptor,
    DescriptorError,
    DescriptorIndex,
    derived_profile,
    derived_profile_name,
    parse_descriptor,
)
from controller.workloads.pods.pod import Pod
from controller.workloads.pods.profile_choice import ChooseProfile, ProfileChoice

__all__ = ("DescriptorProfiles",)

_log = logging.getLogger(__name__)

_PATH = "/apis/workload.katalyst.kubewharf.io/v1alpha1/serviceprofiledescriptors"
# "0": what the server has in memory, rather than every node of the cluster asking etcd.
_QUERY = {"resourceVersion": "0"}
_MOST_TOLD = 100


class _Pair(NamedTuple):
    profile: str
    descriptor: Descriptor


class DescriptorProfiles:
    """For the control thread; a thread of its own follows the objects.

    :param rules: tell who is latency-sensitive; others have no profile.
    """

    def __init__(self, api: Api, config: KubernetesConfig, rules: ClassRules) -> None:
        self._all = config.service_profiles is ServiceProfiles.ALL
        self._trusted = frozenset(config.trusted_namespaces)
        self._rules = rules
        self._sparing, self._sparing_read = RateLimitedLogger(_log), RateLimitedLogger(_log)
        self._catalogue = DescriptorIndex()
        self._pinned = self._catalogue
        self._pairs: Mapping[str, _Pair] = {}
        self._seen: tuple[object, object, object] = (None, None, None)
        self._told: frozenset[str] = frozenset()
        self._state = DescriptorsState()
        self._watch = CollectionWatch(
            api, "ServiceProfileDescriptors", _PATH, _QUERY, self._read, self._parse_all
        )

    def set_pods(self, pods: Mapping[str, Pod], choose: ChooseProfile) -> bool:
        """Find who of *pods* has a descriptor now; whether ``beside`` returns others than before.

        :param choose: what chooses among profiles that are not made of descriptors.
        """
        seen = (pods, self._catalogue, choose)
        if all(map(operator.is_, seen, self._seen)):
            return False
        self._seen, catalogue = seen, self._catalogue
        pairs: dict[str, _Pair] = {}
        for pod in pods.values():
            found = catalogue.find(pod)
            if found is not None and classify(pod, self._rules).qos is QosClass.LS:
                profile = choose(pod).profile
                pairs[derived_profile_name(profile, found)] = _Pair(profile, found)
        changed = pairs != self._pairs
        self._pinned, self._pairs = catalogue, pairs
        return changed

    def merge_into(self, settings: Settings) -> Settings:
        """Return *settings* with the profiles of ``take`` as well."""
        profiles = dict(settings.profiles)
        in_use: dict[str, str] = {}
        problems: dict[str, str] = {}
        for name, (base, descriptor) in sorted(self._pairs.items()):
            if base not in settings.profiles:
                continue
            made, unusable = derived_profile(settings.profiles[base], descriptor, settings.tick_ns)
            if used := ", ".join(_used(descriptor, made)):
                profiles[name], in_use[name] = made, used
            if wrong := (*descriptor.problems, *unusable):
                problems[descriptor.key] = "; ".join(wrong)
        self._log_problems(in_use, problems)
        return replace(settings, profiles=profiles)

    def chooser(self, profiles: Mapping[str, Profile], choose: ChooseProfile) -> ChooseProfile:
        """Return what chooses like *choose*, and of *profiles* that of a pod's descriptor."""
        catalogue = self._pinned

        def tailor(pod: Pod | None) -> ProfileChoice:
            choice = choose(pod)
            found = None if pod is None else catalogue.find(pod)
            if found is None:
                return choice
            name = derived_profile_name(choice.profile, found)
            return choice._replace(derived=name) if name in profiles else choice

        return tailor

    @property
    def state(self) -> DescriptorsState:
        """What is known of them."""
        known, unreadable = len(self._catalogue), self._watch.problem
        return replace(self._state, known=known, unreadable=unreadable)

    @property
    def errors(self) -> Mapping[str, int]:
        """How many requests failed, by ``unreachable`` or HTTP status."""
        return self._watch.errors

    @property
    def failure(self) -> Exception | None:
        """What ended the thread: a bug."""
        return self._watch.failure

    def close(self) -> None:
        """Stop reading."""
        self._watch.close()

    def _read(self, raw: Mapping[str, Any]) -> Descriptor | None:
        try:
            found = parse_descriptor(raw)
        except DescriptorError as error:
            self._sparing_read.warning(str(error))
            return None
        return found if self._all or found.namespace in self._trusted else None

    def _parse_all(self, found: Mapping[str, Descriptor]) -> None:
        self._catalogue = DescriptorIndex(found.values())

    def _log_problems(self, in_use: Mapping[str, str], problems: Mapping[str, str]) -> None:
        used = [f"profile {name}: {text}" for name, text in in_use.items()]
        wrong = [f"ServiceProfileDescriptor {key}: {text}" for key, text in problems.items()]
        for texts, level in ((used, logging.INFO), (wrong, logging.WARNING)):
            for text in texts:
                if text not in self._told:
                    self._sparing.log(level, text)
        self._told = frozenset(used + wrong)
        self._state = DescriptorsState(in_use=_few(in_use), problems=_few(problems))


def _used(descriptor: Descriptor, profile: Profile) -> Iterable[str]:
    points = {spec.name: spec.sweet_point for spec in profile.indicators}
    for indicator, value, origin in descriptor.points:
        if points.get(indicator) == value:
            yield f"{indicator} {value:.3g} ({origin})"


def _few(texts: Mapping[str, str]) -> Mapping[str, str]:
    return dict(list(texts.items())[:_MOST_TOLD])
