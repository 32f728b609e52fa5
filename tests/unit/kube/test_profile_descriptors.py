# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Descriptors that are added, changed and deleted: their derived profiles, and the pods."""

from collections.abc import Iterator
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from controller.config.load import Config, load
from controller.core.model import IndicatorName
from controller.core.settings import Settings
from controller.kube.client.api import Api
from controller.kube.profile_descriptors import DescriptorProfiles
from controller.kube.state import ClusterState
from controller.telemetry.metrics.kubernetes import kube_families
from controller.workloads.pods.classify import ClassRules
from controller.workloads.pods.pod import Pod, parse_pod
from controller.workloads.pods.profile_choice import ProfileChoice, profile_chooser
from tests.support.kube.pod_server import PodServer
from tests.support.waiting import eventually

NAME = "default+shop/web-spd"
Json = dict[str, Any]


def descriptor(namespace: str = "shop", cpi: float = 1.4, name: str = "web-spd") -> Json:
    levels = [{"indicatorLevel": "UpperBound", "value": cpi}]
    indicators = [{"name": "cpi", "indicators": levels}, {"name": "mbw"}]
    reference = {"kind": "StatefulSet", "name": "web"}
    return {
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"targetRef": reference, "systemIndicator": indicators},
    }


def pods(*namespaces: str, qos: str = "Burstable") -> dict[str, Pod]:
    owner = {"kind": "StatefulSet", "name": "web", "controller": True}
    found = (
        {
            "metadata": {
                "uid": f"00000000-0000-0000-0000-{number:012d}",
                "namespace": namespace,
                "name": "web-0",
                "ownerReferences": [owner],
            },
            "status": {"qosClass": qos},
        }
        for number, namespace in enumerate(namespaces)
    )
    return {pod.uid: pod for pod in map(parse_pod, found)}


class Site:
    """The descriptors of a server, and the profiles that the control thread derives from them."""

    def __init__(self, home: Path, which: str, trusted: tuple[str, ...] = ("shop",)) -> None:
        self.server = PodServer(home)
        self.config = self._load(home, which, trusted)
        assert self.config.kubernetes is not None
        self.descriptors = DescriptorProfiles(
            Api(self.server.kubeconfig), self.config.kubernetes, ClassRules()
        )
        self.settings = self.config.settings
        self.named = profile_chooser(
            self.settings.profiles, self.config.kubernetes.profiles, "default"
        )

    @staticmethod
    def _load(home: Path, which: str, trusted: tuple[str, ...]) -> Config:
        file = home / "config.yaml"
        section = {"service_profiles": which, "trusted_namespaces": trusted}
        file.write_text(json.dumps({"kubernetes": section}))
        return load(file, cpus=4)

    def known(self, count: int) -> None:
        eventually("the descriptors", lambda: self.descriptors.state.known == count)

    def scan(self, here: dict[str, Pod]) -> Settings | None:
        """Return the settings with the derived profiles if these have changed."""
        if not self.descriptors.set_pods(here, self.named):
            return None
        return self.descriptors.merge_into(self.settings)

    def chosen(self, settings: Settings, here: dict[str, Pod]) -> list[ProfileChoice]:
        choose = self.descriptors.chooser(settings.profiles, self.named)
        return [choose(pod) for pod in here.values()]


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    site = Site(tmp_path, getattr(request, "param", "trusted"))
    with site.server:
        yield site
        site.descriptors.close()
    assert site.descriptors.failure is None


def points(settings: Settings, profile: str = NAME) -> dict[IndicatorName, float | None]:
    return {spec.name: spec.sweet_point for spec in settings.profiles[profile].indicators}


def test_a_derived_profile_follows_its_descriptor(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    here = pods("shop", "bank")
    assert site.scan(here) is None
    site.server.send_event("ADDED", descriptor())
    site.known(1)
    made = site.scan(here)
    assert made is not None and made.profiles.keys() - site.settings.profiles.keys() == {NAME}
    assert points(made) == points(site.settings, "default") | {IndicatorName.CPI: 1.4}
    assert site.chosen(made, here) == [
        ProfileChoice("default", None, NAME),
        ProfileChoice("default"),
    ]
    assert site.chosen(site.settings, here) == [ProfileChoice("default"), ProfileChoice("default")]
    assert site.scan(here) is None and site.scan(dict(here)) is None
    assert site.descriptors.state.in_use == {NAME: "cpi 1.4 (cpi UpperBound 1.4)"}

    site.server.send_event("MODIFIED", descriptor(cpi=1.5))
    made = eventually("the change", lambda: site.scan(here))
    assert points(made)[IndicatorName.CPI] == 1.5

    assert site.scan(pods("bank")) == site.settings  # no pod with a descriptor
    assert site.scan(here) == made
    site.server.send_event("DELETED", descriptor())
    site.known(0)
    assert site.scan(here) == site.settings
    assert site.chosen(site.settings, here) == [ProfileChoice("default"), ProfileChoice("default")]
    assert [each.getMessage() for each in caplog.records] == [
        f"profile {NAME}: cpi 1.4 (cpi UpperBound 1.4)",
        "ServiceProfileDescriptor shop/web-spd: 'mbw': not known",
        f"profile {NAME}: cpi 1.5 (cpi UpperBound 1.5)",
        f"profile {NAME}: cpi 1.5 (cpi UpperBound 1.5)",
        "ServiceProfileDescriptor shop/web-spd: 'mbw': not known",
    ]


@pytest.mark.parametrize(("site", "known"), [("trusted", 1), ("all", 2)], indirect=["site"])
def test_descriptors_of_accepted_namespaces_are_used(site: Site, known: int) -> None:
    for namespace in ("bank", "shop"):
        site.server.send_event("ADDED", descriptor(namespace))
    site.known(known)
    here = pods("shop", "bank")
    made = eventually("profiles", lambda: site.scan(here))
    derived = [choice.derived for choice in site.chosen(made, here)]
    assert derived == [NAME, "default+bank/web-spd" if known == 2 else ""]


@pytest.mark.parametrize(
    ("which", "trusted", "namespaced"),
    [
        ("trusted", ("shop",), True),
        ("trusted", ("bank", "shop"), False),
        ("all", ("shop",), False),
    ],
)
def test_only_the_descriptors_of_a_single_trusted_namespace_are_sent(
    tmp_path: Path, which: str, trusted: tuple[str, ...], namespaced: bool
) -> None:
    site = Site(tmp_path, which, trusted)
    with site.server:
        eventually("the list and the watch", lambda: site.server.watches)
        site.descriptors.close()
    where = "/namespaces/shop" if namespaced else ""
    path = f"/apis/workload.katalyst.kubewharf.io/v1alpha1{where}/serviceprofiledescriptors?"
    assert all(path in request for request in site.server.requests), site.server.requests


def test_a_pod_that_is_not_latency_sensitive_has_no_derived_profile(site: Site) -> None:
    site.server.send_event("ADDED", descriptor())
    site.known(1)
    assert site.scan(pods("shop", qos="BestEffort")) is None
    assert site.scan(pods("shop", qos="Guaranteed")) is not None


def test_unusable_numbers_make_no_profile(site: Site) -> None:
    site.server.send_event("ADDED", descriptor(cpi=0.001))
    site.known(1)
    here = pods("shop")
    assert site.scan(here) == site.settings
    assert site.chosen(site.settings, here) == [ProfileChoice("default")]
    problems = site.descriptors.state.problems
    assert problems["shop/web-spd"].startswith("'mbw': not known; cpi UpperBound 0.001: ")


def test_an_invalid_descriptor_is_logged_and_the_others_are_used(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.server.send_event("ADDED", descriptor() | {"spec": {"targetRef": "\0" * 1000}})
    site.server.send_event("ADDED", descriptor(name="good"))
    site.known(1)
    assert [each.getMessage() for each in caplog.records] == [
        "descriptor shop/web-spd: a NoneType is not a kind"
    ]


def test_the_state_is_in_statusz_and_in_metrics(site: Site) -> None:
    site.server.send_event("ADDED", descriptor())
    site.known(1)
    site.scan(pods("shop"))
    state = ClusterState(node="n", descriptors=site.descriptors.state)
    assert json.loads(json.dumps(state.status()))["service_profiles"] == {
        "known": 1,
        "in_use": {NAME: "cpi 1.4 (cpi UpperBound 1.4)"},
        "problems": {"shop/web-spd": "'mbw': not known"},
        "unreadable": "",
    }
    values = {
        family.name: family.samples[0].value
        for family in kube_families(state)
        if family.name.startswith("sweetpoint_kube_service_profiles_")
    }
    assert [*values.values()] == [1, 1, 1, 0]
