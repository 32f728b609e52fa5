# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Choice of the profile of a latency-sensitive pod.

The first of these that names an existing profile decides: the rules of the administrator; the label
or annotation ``sweetpoint.dev/profile``; the name of the app (a label, else an image); the default.
The second and third can choose only among the profiles that the namespace of the pod may use. The
owner of a pod can thus choose the name of a profile, but no number in it. A profile that evicts
other pods may be used only from the namespaces that ``allow`` lists for it.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from controller.config.sections.kubernetes_profiles import KubeProfilesConfig, ProfileRule
from controller.core.settings import Profile
from controller.workloads.pods.identity import APP_LABELS
from controller.workloads.pods.pod import Pod

__all__ = ("PROFILE_KEY", "ChooseProfile", "ProfileChoice", "profile_chooser", "replacing")

PROFILE_KEY = "sweetpoint.dev/profile"


class ProfileChoice(NamedTuple):
    """The name of an existing profile, and the problem with a profile that was not chosen.

    ``derived``: the name of the profile derived from it with the sweet points of a
    ServiceProfileDescriptor; empty: none.
    """

    profile: str
    problem: str | None = None
    derived: str = ""


# Returns the profile of a pod; ``None``: a pod of which only the cgroup is known.
ChooseProfile = Callable[[Pod | None], ProfileChoice]


def profile_chooser(
    profiles: Mapping[str, Profile], config: KubeProfilesConfig, fallback: str
) -> ChooseProfile:
    """Return the function that chooses among *profiles*, by name.

    A profile that does not exist, for example because its ConfigMap was not read yet, is not
    chosen: the next rule counts, and the choice has the problem.

    :param fallback: the profile for a missing default; always one of *profiles*.
    """

    def choose(pod: Pod | None) -> ProfileChoice:
        problems: list[str] = []
        found = None if pod is None else _for_pod(pod, profiles, config, problems)
        if found is None and config.default in profiles:
            found = config.default
        elif found is None:
            problems.append(f"the default: no profile has the name {config.default!r}")
            found = fallback
        return ProfileChoice(found, "; ".join(problems) or None)

    return choose


def replacing(
    choose: ChooseProfile, others: Mapping[str, str], profiles: Mapping[str, Profile]
) -> ChooseProfile:
    """Return *choose* with the profile that *others* has for the one that it chooses.

    If *profiles* lack that one, the choice stays and has the problem.
    """

    def choose_other(pod: Pod | None) -> ProfileChoice:
        found = choose(pod)
        other = others.get(found.profile)
        if other is None:
            return found
        if other in profiles:
            return found._replace(profile=other)
        text = f"replace_profiles: no profile has the name {other!r}"
        return found._replace(problem="; ".join(filter(None, (found.problem, text))))

    return choose_other


def _for_pod(
    pod: Pod, profiles: Mapping[str, Profile], config: KubeProfilesConfig, problems: list[str]
) -> str | None:
    for number, rule in enumerate(config.rules, 1):
        if _applies(rule, pod):
            if rule.profile in profiles:
                return rule.profile
            problems.append(f"profile rule {number}: no profile has the name {rule.profile!r}")
    wanted = pod.labels.get(PROFILE_KEY) or pod.annotations.get(PROFILE_KEY, "")
    if wanted and wanted not in profiles:
        problems.append(f"{PROFILE_KEY}={wanted[:64]!r}: no profile has that name")
    elif wanted and not _may(pod, profiles[wanted], config):
        text = f"{PROFILE_KEY}={wanted!r}: {pod.namespace} may not choose it"
        if wanted not in config.allow:
            text += ": it enables evictions, and profiles.allow has no entry for it"
        problems.append(text)
    elif wanted:
        return wanted
    return _by_app(pod, profiles, config) if config.match_apps else None


def _applies(rule: ProfileRule, pod: Pod) -> bool:
    return (
        rule.namespace in ("", pod.namespace)
        and rule.service_account in ("", pod.service_account)
        and all(pod.labels.get(key) == value for key, value in rule.labels)
    )


def _may(pod: Pod, profile: Profile, config: KubeProfilesConfig) -> bool:
    allowed = config.allow.get(profile.name)
    return not profile.evict_enabled if allowed is None else pod.namespace in allowed


def _by_app(pod: Pod, profiles: Mapping[str, Profile], config: KubeProfilesConfig) -> str | None:
    def may(name: str) -> bool:
        return name in profiles and _may(pod, profiles[name], config)

    for key in APP_LABELS:
        if may(app := pod.labels.get(key, "")):
            return app
    # One of the images may be a sidecar's: if two of them have a profile, neither counts.
    found = set(filter(may, pod.images))
    return found.pop() if len(found) == 1 else None
