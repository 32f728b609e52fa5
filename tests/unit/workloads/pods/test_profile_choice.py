# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Choice of a pod's profile: rules of the administrator, label, app, default."""

from typing import Any

import pytest

from controller.config.sections.kubernetes_profiles import KubeProfilesConfig, ProfileRule
from controller.workloads.pods.pod import Pod, parse_pod
from controller.workloads.pods.profile_choice import (
    PROFILE_KEY,
    ProfileChoice,
    profile_chooser,
    replacing,
)
from tests.support.kube.pods import UID, profiles
from tests.support.kube.pods import plain_pod as pod

PROFILES = profiles("default", "gold", "nginx", "redis")

CONFIG = KubeProfilesConfig(
    rules=(
        ProfileRule(profile="gold", namespace="shop", labels=(("tier", "front"),)),
        ProfileRule(profile="redis", namespace="shop", service_account="cart"),
        ProfileRule(profile="lost", namespace="lost"),
        ProfileRule(profile="gold", labels=(("team", "a"), ("tier", "front"))),
    ),
    allow={"gold": frozenset({"bank"}), "nginx": frozenset({"shop", "web"})},
)


def chooses(profile: str, **labels: str) -> dict[str, str]:
    return {PROFILE_KEY: profile, **labels}


@pytest.mark.parametrize(
    ("found", "given"),
    [
        ("gold", pod(labels={"tier": "front"})),
        ("gold", pod("far", labels={"tier": "front", "team": "a"})),
        ("default", pod("far", labels={"tier": "front"})),
        ("redis", pod(service_account="cart")),
        ("default", pod("far", service_account="cart")),
        # The first rule that applies, and before the label of the pod.
        ("gold", pod(labels={"tier": "front"}, service_account="cart")),
        ("gold", pod(labels=chooses("nginx", tier="front"))),
        # The label before the annotation, and both before the app.
        ("redis", pod(labels=chooses("redis", app="nginx"))),
        ("redis", pod(annotations=chooses("redis"))),
        ("redis", pod(labels=chooses("redis"), annotations=chooses("nginx"))),
        ("gold", pod("bank", labels=chooses("gold"))),
        # The app: by label, then by image.
        ("nginx", pod(labels={"app": "nginx"})),
        ("redis", pod(labels={"app.kubernetes.io/name": "redis", "app": "nginx"})),
        ("nginx", pod(labels={"app.kubernetes.io/name": "site", "app": "nginx"})),
        ("redis", pod(labels={"app": "site"}, images=("redis", "side"))),
        ("default", pod(images=("nginx", "redis"))),
        ("default", pod("far", labels={"app": "nginx"})),
        ("redis", pod("far", images=("nginx", "redis"))),
        ("default", pod()),
        ("default", None),
    ],
)
def test_choice(found: str, given: Pod | None) -> None:
    assert profile_chooser(PROFILES, CONFIG, "default")(given) == ProfileChoice(found)


@pytest.mark.parametrize(
    ("found", "problem", "given"),
    [
        ("default", f"{PROFILE_KEY}='silver': no profile has that name", chooses("silver")),
        ("nginx", f"{PROFILE_KEY}='silver': no profile", chooses("silver", app="nginx")),
        ("default", f"{PROFILE_KEY}='gold': shop may not choose it", chooses("gold")),
        ("default", f"{PROFILE_KEY}={'x' * 64!r}: no profile", chooses("x" * 4000)),
    ],
)
def test_a_profile_that_the_pod_may_not_choose(
    found: str, problem: str, given: dict[str, str]
) -> None:
    choice = profile_chooser(PROFILES, CONFIG, "default")(pod(labels=given))
    assert choice.profile == found
    assert choice.problem is not None and choice.problem.startswith(problem)


@pytest.mark.parametrize(
    "wish",
    [
        {"labels": chooses("sharp")},
        {"annotations": chooses("sharp")},
        {"labels": {"app": "sharp"}},
        {"images": ("sharp",)},
    ],
)
def test_a_profile_that_evicts_needs_an_entry_in_allow(wish: dict[str, Any]) -> None:
    named = profiles("default", evicting=("sharp",))
    for allow, found in (
        ({}, "default"),
        ({"sharp": frozenset({"bank"})}, "default"),
        ({"sharp": frozenset({"shop"})}, "sharp"),
    ):
        choose = profile_chooser(named, KubeProfilesConfig(allow=allow), "default")
        assert choose(pod(**wish)).profile == found
    refused = profile_chooser(named, KubeProfilesConfig(), "default")(pod(labels=chooses("sharp")))
    assert refused.problem == (
        f"{PROFILE_KEY}='sharp': shop may not choose it: it enables evictions, and profiles.allow "
        "has no entry for it"
    )


def test_the_administrator_gives_a_profile_that_evicts_without_allow() -> None:
    named = profiles("default", evicting=("sharp",))
    by_rule = KubeProfilesConfig(rules=(ProfileRule(profile="sharp", namespace="shop"),))
    for config in (by_rule, KubeProfilesConfig(default="sharp")):
        assert profile_chooser(named, config, "default")(pod()) == ProfileChoice("sharp")


def test_a_rule_with_a_missing_profile_is_skipped() -> None:
    choice = profile_chooser(PROFILES, CONFIG, "default")(pod("lost", labels=chooses("redis")))
    assert choice == ProfileChoice("redis", "profile rule 3: no profile has the name 'lost'")


def test_another_default_and_its_fallback() -> None:
    config = KubeProfilesConfig(default="gold", match_apps=False)
    assert profile_chooser(PROFILES, config, "default")(pod(images=("redis",))) == ProfileChoice(
        "gold"
    )
    choice = profile_chooser(profiles("default"), config, "default")(None)
    assert choice == ProfileChoice("default", "the default: no profile has the name 'gold'")


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("redis", "redis"),
        ("redis:7.2-alpine", "redis"),
        ("localhost:5000/a/b/redis", "redis"),
        ("registry.example/nginx:1@sha256:00ff", "nginx"),
        ("../../etc/passwd", "passwd"),
        ("nginx:1:2", None),
        ("a/..", None),
        ("", None),
        (7, None),
        ("x" * 100_000, None),
    ],
)
def test_names_of_images(image: object, name: str | None) -> None:
    raw = {
        "metadata": {"namespace": "a", "name": "b", "uid": UID},
        "spec": {"containers": [{"image": image}, {"image": image}]},
    }
    assert parse_pod(raw).images == (() if name is None else (name,))


def test_labels_of_rules_are_kept() -> None:
    meta = {"namespace": "a", "name": "b", "uid": UID, "labels": {"tier": "front", "other": "x"}}
    assert parse_pod({"metadata": meta}).labels == {}
    kept = parse_pod({"metadata": meta}, CONFIG.label_keys).labels
    assert kept == {"tier": "front"}
    assert profile_chooser(PROFILES, CONFIG, "default")(pod(labels=kept)).profile == "gold"


def test_a_profile_is_replaced_whatever_led_to_it() -> None:
    choose = replacing(
        profile_chooser(PROFILES, CONFIG, "default"),
        {"nginx": "gold", "gold": "redis", "default": "lost"},
        PROFILES,
    )
    # Not in turn, and also by one that the pod may not choose itself.
    assert choose(pod(labels={"app": "nginx"})) == ProfileChoice("gold")
    assert choose(pod(labels={"tier": "front"})) == ProfileChoice("redis")
    assert choose(pod(labels={"app": "redis"})) == ProfileChoice("redis")
    text = "replace_profiles: no profile has the name 'lost'"
    assert choose(None) == ProfileChoice("default", text)
