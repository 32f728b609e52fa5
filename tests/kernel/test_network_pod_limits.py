# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Bandwidth limits of single best-effort pods: enforced, changed in place, removed."""

from collections.abc import Iterator
from pathlib import Path
import time

import pytest

from controller.core.model import CgroupId
from controller.host.facts import CgroupLayout
from tests.kernel.limited_pod import LINK_MBIT, LimitedPod, limited_pod
from tests.kernel.sockets import BYTES, FRAME_BYTES, exchange, port, socket_in
from tests.kernel.wire import WIRE, Flow
from tests.support.waiting import eventually

pytestmark = pytest.mark.kernel

# More than the class sends at once, which is 64 KiB, and less than a socket holds.
PACKETS = 150


@pytest.fixture
def pod(cgroup_root: Path, cgroup_layout: CgroupLayout, tmp_path: Path) -> Iterator[LimitedPod]:
    with limited_pod(cgroup_root, cgroup_layout, tmp_path) as made:
        yield made


def test_packets_wait_for_a_limit_that_is_changed_in_place(pod: LimitedPod) -> None:
    kbit = 0.008  # less than a packet a second
    assert pod.ceilings(pod.limited(kbit, 10)) == (kbit, 10)
    with socket_in(pod.host.wire) as server, socket_in(pod.host.pods["batch"]) as client:
        # The neighbours are known now: the queue for an unknown one is short.
        exchange(client, server, WIRE)
        for _ in range(PACKETS):
            client.sendto(bytes(BYTES), (WIRE, port(server)))
        total = (1 + PACKETS) * FRAME_BYTES
        eventually("every packet in the class", lambda: handled_bytes(pod) == total)
        assert pod.sent().backlog_bytes > 0
        assert pod.ceilings(pod.limited(40, 20)) == (40, 20)
        eventually("an empty queue", lambda: not pod.sent().backlog_bytes)
    # The counters of a new class would start at 0, and the packets in an old one would be lost.
    assert pod.sent() == (total, 1 + PACKETS, 0, 0)
    assert pod.ceilings() == (LINK_MBIT, LINK_MBIT)


def handled_bytes(pod: LimitedPod) -> int:
    counters = pod.sent()
    return counters.sent_bytes + counters.backlog_bytes


@pytest.mark.timed
def test_the_rates_of_a_limited_pod(pod: LimitedPod) -> None:
    assert pod.ceilings(pod.limited(20, 10)) == (20, 10)
    udp = ("-u", "-l", "1400")
    rates = []
    with Flow(pod.host, pod.host.pods["batch"], mbit=90, extra=udp):
        for limit in (20, 40):
            pod.ceilings(pod.limited(limit, 10))
            time.sleep(0.3)
            before, began = pod.sent().sent_bytes, time.monotonic()
            time.sleep(0.5)
            passed_s = time.monotonic() - began
            rates.append((pod.sent().sent_bytes - before) * 8e-6 / passed_s)
    print(f"Mbit/s: {rates}")
    assert rates == pytest.approx([20, 40], rel=0.1)


@pytest.mark.thorough
def test_changed_limits_are_no_damage(pod: LimitedPod) -> None:
    # A tree that another program changes is repaired at most three times in ten minutes.
    for limit in (10, 20, 30, 40, 50, 60):
        assert pod.ceilings(pod.limited(limit)) == (limit, LINK_MBIT)
    assert not pod.links.problems
    assert pod.ceilings() == (LINK_MBIT, LINK_MBIT)
    assert pod.ceilings(pod.limited(500)) == (LINK_MBIT, LINK_MBIT)


@pytest.mark.thorough
def test_a_limit_changed_by_another_program_is_repaired(pod: LimitedPod) -> None:
    pod.ceilings(pod.limited(20))
    pod.change_limit(150)
    assert pod.ceilings(pod.limited(20), after_s=6) == (20, LINK_MBIT)


@pytest.mark.thorough
def test_a_higher_limit_does_not_replace_that_of_the_configuration(pod: LimitedPod) -> None:
    assert pod.ceilings(pod.limited(100)._replace(name="etl-1")) == (LINK_MBIT, LINK_MBIT)
    assert not pod.links.problems


@pytest.mark.thorough
def test_a_pod_without_a_class_is_reported(pod: LimitedPod) -> None:
    other = pod.limited(30)._replace(name="other", cgroup=CgroupId("cpu", 1), path="/gone")
    assert pod.ceilings(pod.limited(20), other) == (20, LINK_MBIT)
    assert "classes for 1 of them" in pod.links.problems["pod_limits"]
    assert pod.ceilings(pod.limited(20)) == (20, LINK_MBIT)
    assert not pod.links.problems
