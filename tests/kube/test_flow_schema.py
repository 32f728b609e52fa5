# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The priority level of evictions and taints, as a real API server divides its seats."""

import re

import pytest

from tests.kube.cluster import Cluster
from tests.kube.installed import Installed
from tests.support.waiting import eventually

pytestmark = pytest.mark.kube

EVICTS = {"config": {"kubernetes": {"eviction": {"enabled": True}}}}


def test_an_idle_level_keeps_a_seat(cluster: Cluster) -> None:
    name = Installed(cluster, EVICTS).name
    metric = rf'^apiserver_flowcontrol_lower_limit_seats{{priority_level="{name}"}} (\d+)$'

    def seats() -> list[str]:
        return re.findall(metric, str(cluster.admin.get("/metrics")["message"]), re.MULTILINE)

    # Without one the first request after a while waits up to 10 s: the agent that ends has less.
    eventually("the priority level", seats)
    assert int(seats()[0]) >= 1
