# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Sweet points from Katalyst's ServiceProfileDescriptors for the pods of this node.

A pod with a descriptor gets a derived profile: its own profile with the descriptor's numbers. A
derived profile exists as long as such a pod is on this node. It must be in the settings before a
workload refers to it, so a pod starts with its own profile and gets the derived one at the next
scan.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
import logging
import operator
from typing import Any, NamedTuple

from controller.config.sections.kubernetes import KubernetesConfig, ServiceProfiles
from controller.core.model import QosClass
from controller.core.settings import Profile, Settings
from controller.kube.client.api import Api, segment
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

_GROUP, _PLURAL = "/apis/workload.katalyst.kubewharf.io/v1alpha1", "serviceprofiledescriptors"
# "0": the state in the server's memory; otherwise every node of the cluster would read from etcd.
_QUERY = {"resourceVersion": "0"}
_MAX_TEXTS = 100


class _Pair(NamedTuple):
    profile: str
    descriptor: Descriptor


class DescriptorProfiles:
    """Derived profiles for the control thread; a watch reads the objects in a thread of its own.

    :param rules: classify pods; only latency-sensitive pods have a profile.
    """

    def __init__(self, api: Api, config: KubernetesConfig, rules: ClassRules) -> None:
        self._all = config.service_profiles is ServiceProfiles.ALL
        self._trusted = frozenset(config.trusted_namespaces)
        self._rules = rules
        # One per thread: the control thread's and the watch's.
        self._limited_log, self._parse_log = RateLimitedLogger(_log), RateLimitedLogger(_log)
        self._index = DescriptorIndex()
        # The index as of the last set_pods().
        self._used_index = self._index
        self._pairs: Mapping[str, _Pair] = {}
        self._inputs: tuple[object, object, object] = (None, None, None)
        self._logged: frozenset[str] = frozenset()
        self._state = DescriptorsState()
        self._watch = CollectionWatch(
            api, "ServiceProfileDescriptors", _path(config), _QUERY, self._parse, self._publish
        )

    def set_pods(self, pods: Mapping[str, Pod], choose: ChooseProfile) -> bool:
        """Find the descriptors of *pods*; return whether ``merge_into`` gives other profiles now.

        :param choose: chooses among the profiles that are not derived.
        """
        index = self._index
        inputs = (pods, index, choose)
        if all(map(operator.is_, inputs, self._inputs)):
            return False
        self._inputs = inputs
        pairs: dict[str, _Pair] = {}
        for pod in pods.values():
            descriptor = index.find(pod)
            if descriptor is not None and classify(pod, self._rules).qos is QosClass.LS:
                profile = choose(pod).profile
                pairs[derived_profile_name(profile, descriptor)] = _Pair(profile, descriptor)
        changed = pairs != self._pairs
        self._used_index, self._pairs = index, pairs
        return changed

    def merge_into(self, settings: Settings) -> Settings:
        """Return *settings* with the derived profiles of the last ``set_pods`` added."""
        profiles = dict(settings.profiles)
        in_use: dict[str, str] = {}
        problems: dict[str, str] = {}
        for name, (base, descriptor) in sorted(self._pairs.items()):
            if base not in settings.profiles:
                continue
            derived, invalid = derived_profile(
                settings.profiles[base], descriptor, settings.tick_ns
            )
            if used := ", ".join(_used(descriptor, derived)):
                profiles[name], in_use[name] = derived, used
            if texts := (*descriptor.problems, *invalid):
                problems[descriptor.key] = "; ".join(texts)
        self._log_problems(in_use, problems)
        return replace(settings, profiles=profiles)

    def chooser(self, profiles: Mapping[str, Profile], choose: ChooseProfile) -> ChooseProfile:
        """Return a chooser that extends *choose* with derived profiles that are in *profiles*."""
        index = self._used_index

        def choose_derived(pod: Pod | None) -> ProfileChoice:
            choice = choose(pod)
            descriptor = None if pod is None else index.find(pod)
            if descriptor is None:
                return choice
            name = derived_profile_name(choice.profile, descriptor)
            return choice._replace(derived=name) if name in profiles else choice

        return choose_derived

    @property
    def state(self) -> DescriptorsState:
        """The state of the descriptors."""
        known, unreadable = len(self._index), self._watch.problem
        return replace(self._state, known=known, unreadable=unreadable)

    @property
    def errors(self) -> Mapping[str, int]:
        """The number of failed requests by ``unreachable`` or HTTP status."""
        return self._watch.errors

    @property
    def denied(self) -> Mapping[str, str]:
        """What the server forbids now, see ``CollectionWatch.denied``."""
        return self._watch.denied

    @property
    def failure(self) -> Exception | None:
        """The exception that ended the thread: a bug."""
        return self._watch.failure

    def close(self) -> None:
        """Stop the watch."""
        self._watch.close()

    def _parse(self, raw: Mapping[str, Any]) -> Descriptor | None:
        try:
            descriptor = parse_descriptor(raw)
        except DescriptorError as error:
            self._parse_log.warning(str(error))
            return None
        return descriptor if self._all or descriptor.namespace in self._trusted else None

    def _publish(self, descriptors: Mapping[str, Descriptor]) -> None:
        self._index = DescriptorIndex(descriptors.values())

    def _log_problems(self, in_use: Mapping[str, str], problems: Mapping[str, str]) -> None:
        used = [f"profile {name}: {text}" for name, text in in_use.items()]
        invalid = [f"ServiceProfileDescriptor {key}: {text}" for key, text in problems.items()]
        for texts, level in ((used, logging.INFO), (invalid, logging.WARNING)):
            for text in texts:
                if text not in self._logged:
                    self._limited_log.log(level, text)
        self._logged = frozenset(used + invalid)
        self._state = DescriptorsState(in_use=_first(in_use), problems=_first(problems))


def _path(config: KubernetesConfig) -> str:
    # Katalyst changes the status of descriptors often, and each change is sent to every node. One
    # namespace can be selected, several cannot.
    trusted = config.trusted_namespaces
    if config.service_profiles is ServiceProfiles.TRUSTED and len(trusted) == 1:
        return f"{_GROUP}/namespaces/{segment(trusted[0])}/{_PLURAL}"
    return f"{_GROUP}/{_PLURAL}"


def _used(descriptor: Descriptor, profile: Profile) -> Iterable[str]:
    points = {spec.name: spec.sweet_point for spec in profile.indicators}
    for indicator, value, origin in descriptor.points:
        if points.get(indicator) == value:
            yield f"{indicator} {value:.3g} ({origin})"


def _first(texts: Mapping[str, str]) -> Mapping[str, str]:
    return dict(list(texts.items())[:_MAX_TEXTS])
