# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The chart's agent asks the pods of a service for their figures, at their own addresses."""

from functools import partial

import pytest

from tests.kube.client import Json
from tests.kube.release import Release
from tests.kube.test_new_containers import status

pytestmark = [pytest.mark.kernel, pytest.mark.kube]

PAGE = {"port": 8080, "path": "/figures", "metric": "p99", "every": "1s", "timeout": "1s"}
ASKED = {"config": {"service_level": {"pods": {"default": PAGE}}}}
SERVE = "mkdir /tmp/www; echo 'p99 {}' >/tmp/www/figures; exec httpd -f -p 8080 -h /tmp/www"
REQUESTS = {"requests": {"cpu": "10m"}}


def figure(release: Release, service: str) -> Json | None:
    """Return the state of the figure of *service*, from /statusz."""
    found = status(release.node, release.agent()["status"]["podIP"])
    # The page has little before the first tick.
    every = found.get("service_level", ())
    return next((each for each in every if each["service"] == service), None)


def is_figure(release: Release, service: str, value: float) -> bool:
    """Whether the figure of *service* is *value*, in ns."""
    found = figure(release, service)
    return found is not None and (found["kind"], found["value"]) == ("pods", value)


@pytest.mark.parametrize("release", [ASKED], indirect=True)
def test_the_figure_of_a_service_is_that_of_its_worst_pod(release: Release, busy: str) -> None:
    node, service = release.node, f"{busy}/shop@default"
    for name, seconds in (("fast", 0.003), ("slow", 0.008)):
        node.run_pod(busy, name, REQUESTS, SERVE.format(seconds), labels={"app": "shop"})
    node.wait("the slow pod's figure", partial(is_figure, release, service, 8e6))
    node.delete_pod(busy, "slow")
    node.wait("the other pod's figure", partial(is_figure, release, service, 3e6))
