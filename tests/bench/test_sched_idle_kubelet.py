# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What sched-idle gives a service in a pod, by the cgroup of kubelet that is idle.

The cgroups have kubelet's layout and weights. The kernel refuses kubelet's weight for an idle QoS
level, so that arm is only the reference.
"""

from collections.abc import Callable, Mapping
import itertools
import json
import os
from pathlib import Path
from statistics import median
import subprocess
import sys
import time
from typing import NamedTuple

import pytest

from controller.host.facts import CgroupLayout
from tests.kernel.loads import Load, loads
from tests.kube.kubepods import Kubepods

pytestmark = [pytest.mark.bench, pytest.mark.kernel]

ROUNDS = 5
P99_ROUNDS = 3
SHARE_S = 1.0
REQUESTS_S = 5.0
_UIDS = [f"00000000-0000-4000-8000-{number:012d}" for number in range(7)]

# Requests with 1 ms of work at Poisson times; latency counts from the intended time.
_REQUEST_LOOP = """
import json, os, random, sys, time
cgroup, seconds, seed = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
with open(cgroup + "/cgroup.procs", "w") as procs:
    procs.write(str(os.getpid()))
random, latencies = random.Random(seed), []
intended = time.perf_counter() + 0.05
end = intended + seconds
while intended < end:
    intended += random.expovariate(150)
    time.sleep(max(0.0, intended - time.perf_counter()))
    until = time.thread_time() + 0.001
    while time.thread_time() < until:
        pass
    latencies.append(time.perf_counter() - intended)
print(json.dumps(latencies))
"""


class Weight(NamedTuple):
    """What kubelet gives a pod for its request, and the level of Burstable pods for their sum."""

    shares: int  # cgroup v1
    weight: int  # cgroup v2, by the conversion of kubelet 1.36


class Others(NamedTuple):
    """BestEffort pods, all always runnable: *hogs*, and a system pod, which is never idle."""

    hogs: int
    system: bool


SERVICES = {
    "Burstable, 100m": ("Burstable", Weight(102, 4)),
    "Burstable, 1 CPU": ("Burstable", Weight(1024, 39)),
    "Guaranteed, 1 CPU": ("Guaranteed", Weight(1024, 39)),
}
OTHERS = {
    "1 pod": Others(1, False),
    "5 pods": Others(5, False),
    "5 pods and a system pod": Others(5, True),
}
_BEST_EFFORT = Weight(2, 1)
# What is idle: the level of the BestEffort pods, the pods.
ARMS: Mapping[str, tuple[bool, bool]] = {
    "kubelet's weights": (False, False),
    "idle on the pods": (False, True),
    "idle on the level": (True, False),
}


class Pods:
    """A service and *others*, by their names; ``set_arm`` makes some of the others idle."""

    def __init__(self, root: Path, layout: CgroupLayout, service: str, others: str) -> None:
        (qos, weight), (hogs, system) = SERVICES[service], OTHERS[others]
        self._v2 = layout.version == "v2"
        tree = Kubepods(root, layout)
        tree.make_qos_levels()
        self._level = tree.qos_level("besteffort")
        pod = tree.pod(_UIDS[0], qos)
        best_effort = [tree.pod(uid, "BestEffort") for uid in _UIDS[1 : hogs + 1 + system]]
        self._hogs = best_effort[:hogs]
        self._containers = [tree.make_container(each, "main") for each in (pod, *best_effort)]
        self._set_weight(pod, weight)
        if qos == "Burstable":
            self._set_weight(tree.qos_level("burstable"), weight)

    def _set_weight(self, cgroup: Path, weight: Weight) -> None:
        if self._v2:
            (cgroup / "cpu.weight").write_text(str(weight.weight))
        else:
            (cgroup / "cpu.shares").write_text(str(weight.shares))

    def set_arm(self, arm: str) -> None:
        """Make the level or the pods idle, and the others what kubelet makes them."""
        level, pods = ARMS[arm]
        for cgroup, idle in ((self._level, level), *((each, pods) for each in self._hogs)):
            (cgroup / "cpu.idle").write_text(str(int(idle)))
            if not idle:
                self._set_weight(cgroup, _BEST_EFFORT)

    def share(self) -> float:
        """Return the service's share of a CPU on which all pods are always runnable."""
        cpu = min(os.sched_getaffinity(0))
        with loads([Load(each, "hog", cpu) for each in self._containers], 600) as running:
            running.start()
            time.sleep(0.2)
            before = [running.schedstat(each).oncpu_ns for each in self._containers]
            time.sleep(SHARE_S)
            after = [running.schedstat(each).oncpu_ns for each in self._containers]
        used = [late - early for late, early in zip(after, before, strict=True)]
        return used[0] / sum(used)

    def p99_ms(self, seed: int) -> float:
        """Return the p99 of the requests of two processes beside two hogs a CPU or more."""
        count = max(len(self._containers) - 1, 2 * (os.cpu_count() or 1))
        pods = itertools.islice(itertools.cycle(self._containers[1:]), count)
        with loads([Load(each, "hog") for each in pods], 600) as running:
            running.start()
            command = [sys.executable, "-S", "-c", _REQUEST_LOOP, str(self._containers[0])]
            servers = [
                subprocess.Popen(
                    [*command, str(REQUESTS_S), str(seed + each)], stdout=subprocess.PIPE
                )
                for each in range(2)
            ]
            found = sorted(x for each in servers for x in json.loads(each.communicate()[0]))
        return float(found[len(found) * 99 // 100]) * 1e3


def measured(pods: Pods, figure: Callable[[int], float], rounds: int) -> dict[str, float]:
    """Return the median of *figure* by arm; its argument is the number of the round."""
    found: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for number in range(rounds):
        for arm in list(ARMS)[number % 3 :] + list(ARMS)[: number % 3]:
            pods.set_arm(arm)
            found[arm].append(figure(number))
    return {arm: median(values) for arm, values in found.items()}


@pytest.mark.parametrize("others", list(OTHERS))
@pytest.mark.parametrize("service", list(SERVICES))
def test_share(cgroup_layout: CgroupLayout, cgroup_root: Path, service: str, others: str) -> None:
    pods = Pods(cgroup_root, cgroup_layout, service, others)
    shares = measured(pods, lambda _: pods.share(), ROUNDS)
    words = ", ".join(f"{arm} {share:.3f}" for arm, share in shares.items())
    print(f"\ncgroup {cgroup_layout.version}, {service} beside {others}: share {words}")
    assert shares["idle on the pods"] >= shares["kubelet's weights"] - 0.05


@pytest.mark.parametrize("others", list(OTHERS))
@pytest.mark.parametrize("service", list(SERVICES))
def test_p99(cgroup_layout: CgroupLayout, cgroup_root: Path, service: str, others: str) -> None:
    pods = Pods(cgroup_root, cgroup_layout, service, others)
    found = measured(pods, lambda number: pods.p99_ms(10 * number), P99_ROUNDS)
    words = ", ".join(f"{arm} {value:.2f} ms" for arm, value in found.items())
    print(f"\ncgroup {cgroup_layout.version}, {service} beside {others}: p99 {words}")
    assert found["idle on the pods"] <= 2 * found["kubelet's weights"]
