# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What the log says at the start, with and without a list of pods that comes later."""

import logging

import pytest

from controller.agent.start_log import StartLog
from controller.core.model import CgroupId, QosClass, Workload
from tests.support.loops.closed_loop import make_settings


def workload(number: int, qos: QosClass) -> Workload:
    name = f"w{number}"
    return Workload(
        name=name, cgroup=CgroupId("v2", number), path=f"/{name}", qos=qos, service=name, profile=""
    )


WORKLOADS = tuple(
    workload(number, qos) for number, qos in enumerate([QosClass.LS, QosClass.BE, QosClass.BE])
)
COUNTS = "1 latency-sensitive, 2 best-effort, 0 system workloads"


@pytest.fixture(autouse=True)
def level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_on_a_host_without_a_cluster_one_line_has_all(caplog: pytest.LogCaptureFixture) -> None:
    log = StartLog()
    log.begin(make_settings(), WORKLOADS, pods_known=True)
    log.poll(WORKLOADS[:1], pods_known=True)
    assert caplog.messages == [f"enforce every 200ms: {COUNTS}"]


def test_pods_are_counted_when_their_list_was_read(caplog: pytest.LogCaptureFixture) -> None:
    log = StartLog()
    log.begin(make_settings(), (), pods_known=False)
    for _ in range(3):
        log.poll((), pods_known=False)
    assert caplog.messages == ["enforce every 200ms: the pods of this node are not known yet"]
    for _ in range(3):
        log.poll(WORKLOADS, pods_known=True)
    assert caplog.messages[1:] == [f"the pods of this node are known: {COUNTS}"]
