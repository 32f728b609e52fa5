# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Filters at the veths of pods: placed, removed and repaired in line with the workloads."""

from collections.abc import Iterator
import contextlib
from pathlib import Path

import pytest

from actuators.tc.tree import Programs
from controller.config.sections.network import LimitRule
from controller.core.model import CgroupId, QosClass, Workload
from controller.core.units import NS_PER_SEC
from controller.host.facts import CgroupLayout
from controller.probes.tc_classifier import Classifier
from controller.reconcilers.network.pod_filters import PodFilters
from tests.kernel.links import link_executor, load_programs, workload_of
from tests.kernel.netns import entered, process_in
from tests.kernel.wire import Host, dump

pytestmark = [pytest.mark.kernel, pytest.mark.thorough]


@pytest.fixture(scope="module")
def classifier() -> Iterator[Classifier]:
    programs = load_programs()
    yield programs
    programs.close()


class Pods:
    """Two pods, each a cgroup with a process in a network namespace, and their filters."""

    def __init__(
        self, host: Host, root: Path, layout: CgroupLayout, classifier: Classifier, state: Path
    ) -> None:
        self.host, self._root, self._layout = host, root, layout
        self.executor = link_executor(state, Programs(**classifier.program_fds))
        self.filters = PodFilters(layout, (LimitRule("no-such-workload", 1000, None),), classifier)
        self._now_ns = 0
        self._stack = contextlib.ExitStack()

    def end(self) -> None:
        self._stack.close()

    def start(self, name: str, pod: str, qos: QosClass) -> Workload:
        """Start a process below the cgroup of workload *name*, in the namespace of *pod*."""
        path = self._root / name
        (path / "container").mkdir(parents=True)
        self._stack.enter_context(process_in(self.host.pods[pod], path / "container"))
        return workload_of(self._layout, path, qos)

    def tick(self, seconds: int = 1) -> set[str]:
        """Let time pass and return the devices with filters."""
        for _ in range(seconds):
            self._now_ns += 2 * NS_PER_SEC
            self.filters.reconcile(self.executor, self._now_ns)
        shown = self.host.inside(
            self.host.name,
            "sh",
            "-c",
            "for d in veth-web veth-batch; do "
            "tc filter show dev $d ingress | sed s/^/$d.in:/; "
            "tc filter show dev $d egress | sed s/^/$d.out:/; done",
        )
        ours = [line for line in shown.splitlines() if "sweetpoint_" in line]
        assert len(ours) % 2 == 0, ours  # both directions or none
        return {line.partition(".")[0] for line in ours}


@pytest.fixture
def pods(
    cgroup_root: Path, cgroup_layout: CgroupLayout, classifier: Classifier, tmp_path: Path
) -> Iterator[Pods]:
    with Host() as host, entered(host.name):
        made = Pods(host, cgroup_root, cgroup_layout, classifier, tmp_path)
        try:
            yield made
        finally:
            made.end()


def test_filters_follow_the_workloads(pods: Pods) -> None:
    before = dump(pods.host)
    web = pods.start("web", "web", QosClass.LS)
    batch = pods.start("batch", "batch", QosClass.BE)
    pods.filters.set_workloads([web, batch])
    assert pods.tick() == {"veth-web", "veth-batch"}
    assert len(pods.executor.held()) == 2
    pods.filters.set_workloads([web])
    assert pods.tick() == {"veth-web"}
    pods.filters.set_workloads([web._replace(qos=QosClass.SYSTEM)])
    assert pods.tick() == set()
    assert dump(pods.host) == before
    assert not pods.executor.held()


def test_a_second_workload_in_the_same_namespace(pods: Pods) -> None:
    web = pods.start("web", "web", QosClass.LS)
    batch = pods.start("batch", "web", QosClass.BE)
    pods.filters.set_workloads([web, batch])
    assert pods.tick() == {"veth-web"}
    pods.filters.set_workloads([batch])
    assert pods.tick() == {"veth-web"}


def test_a_removed_filter_is_placed_again(pods: Pods) -> None:
    pods.filters.set_workloads([pods.start("batch", "batch", QosClass.BE)])
    assert pods.tick() == {"veth-batch"}
    pods.host.inside(pods.host.name, "tc", "qdisc", "del", "dev", "veth-batch", "clsact")
    assert pods.tick(seconds=3) == {"veth-batch"}


def test_a_veth_that_is_made_again_gets_filters(pods: Pods) -> None:
    host = pods.host
    pods.filters.set_workloads([pods.start("batch", "batch", QosClass.BE)])
    assert pods.tick() == {"veth-batch"}
    host.ip(host.name, "link", "del", "veth-batch")
    namespace = host.pods["batch"]
    made = ("type", "veth", "peer", "eth0", "netns", namespace)
    host.ip(host.name, "link", "add", "veth-batch", *made)
    assert pods.tick(seconds=4) == {"veth-batch"}
    assert len(pods.executor.held()) == 1


def test_a_workload_without_a_process_gets_no_filters(pods: Pods) -> None:
    web = pods.start("web", "web", QosClass.LS)
    pods.filters.set_workloads([web._replace(path=f"{web.path}-later", cgroup=CgroupId("cpu", 1))])
    assert pods.tick() == set()
    pods.filters.set_workloads([web])
    assert pods.tick() == {"veth-web"}
