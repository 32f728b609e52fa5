# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The chart's agent asks the pods of services for their figures, and limits jobs by them."""

from collections.abc import Mapping
from functools import partial

import pytest

from tests.kube.client import Json
from tests.kube.hogs import LAW, profile
from tests.kube.release import Release
from tests.kube.told import status

pytestmark = [pytest.mark.kernel, pytest.mark.kube]

PAGE = {"port": 8080, "path": "/figures", "metric": "p99", "every": "1s", "timeout": "1s"}
# No other indicator shows that a service suffers.
PROFILE = {**profile("cache"), "indicators": {"service": {"sweet_point": "10ms", "filter": "0s"}}}
ASKED = {
    "profiles": {"default": PROFILE},
    "config": {"law": LAW, "service_level": {"pods": {"default": PAGE}}},
}
SERVE = "mkdir /tmp/www; echo 'p99 {}' >/tmp/www/figures; exec httpd -f -p 8080 -h /tmp/www"
REQUESTS = {"requests": {"cpu": "10m"}}


def agent_status(release: Release) -> Json:
    return status(release.node, release.agent()["status"]["podIP"])


def are_figures(release: Release, wanted: Mapping[str, float]) -> bool:
    """Whether the figures of the services are *wanted*, in ns."""
    # The page has little before the first tick.
    every = agent_status(release).get("service_level", ())
    found = {each["service"]: each["value"] for each in every if each["kind"] == "pods"}
    return wanted.items() <= found.items()


def limited(release: Release) -> dict[str, tuple[str, str]]:
    """Return the service and the indicator for which each job has a quota, by its name."""
    found = agent_status(release)["in_force"]["limited"]
    return {
        each["name"]: (each["service"], each["indicator"])
        for each in found
        if "cpu.quota" in each["knobs"]
    }


def limited_for(service: str, idle: str, release: Release) -> dict[str, tuple[str, str]]:
    """Return ``limited`` once a job is limited for *service*; nothing while the *idle* one is.

    It used CPU time when it started. A squeeze limits it until that time is forgotten.
    """
    found = limited(release)
    is_squeezed = (service, "service") in found.values()
    return found if is_squeezed and idle not in found else {}


@pytest.mark.parametrize("release", [ASKED], indirect=True)
def test_jobs_are_limited_for_the_service_whose_worst_pod_is_slow(
    release: Release, busy: str
) -> None:
    node = release.node
    shop, bank = f"{busy}/shop@default", f"{busy}/bank@default"
    node.run_pod(busy, "sleeper", {})
    for name, seconds in (("shop-fast", 0.008), ("bank-one", 0.004), ("bank-two", 0.005)):
        labels = {"app": name.partition("-")[0]}
        node.run_pod(busy, name, REQUESTS, SERVE.format(seconds), labels=labels)
    node.wait("both figures", partial(are_figures, release, {shop: 8e6, bank: 5e6}))
    assert not limited(release)
    # A figure that rises more than fourfold is not believed at once, where one is usual by then.
    node.run_pod(busy, "shop-slow", REQUESTS, SERVE.format(0.025), labels={"app": "shop"})
    node.wait("the slow pod's figure", partial(are_figures, release, {shop: 25e6, bank: 5e6}))
    found = node.wait("limits of busy jobs", partial(limited_for, shop, f"{busy}/sleeper", release))
    # Not for the service whose pods are well.
    assert found.keys() <= {f"{busy}/one", f"{busy}/two"}
    # A trial of one job to find out what it does is for no service.
    assert {service for service, _ in found.values()} <= {shop, None}
    node.delete_pod(busy, "shop-slow")
    node.wait("the other pod's figure", partial(are_figures, release, {shop: 8e6, bank: 5e6}))
    node.wait("no limit", lambda: not limited(release))
