# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Helpers of tests of network knobs: targets, BPF programs, and an executor with both."""

from pathlib import Path

from actuators.base import Trace, no_trace
from actuators.executor import Executor
from actuators.journal import Journal
from actuators.tc.ceiling import TcCeiling
from actuators.tc.netlink import network_namespace
from actuators.tc.pod_filter import TcPodFilter
from actuators.tc.shape import CLASS_OF_TIER, MAJOR, Shape, Tree, encode
from actuators.tc.tree import Programs, TcTree
from controller.core.decision import Action, Outcome
from controller.core.model import (
    CgroupId,
    Knob,
    KnobValue,
    QosClass,
    Target,
    TargetKind,
    Workload,
)
from controller.host.facts import CgroupLayout
from controller.probes.tc_classifier import Classifier
from tests.kernel.wire import Host

MBIT = 125_000
LINK_MBIT = 200
GUARANTEED_MBIT = 150
SHAPE = Shape(
    LINK_MBIT * MBIT,
    (10 * MBIT, LINK_MBIT * MBIT),
    (GUARANTEED_MBIT * MBIT, LINK_MBIT * MBIT),
    (10 * MBIT, LINK_MBIT * MBIT),
    (30 * MBIT,),
)
BOTH = encode(Tree(SHAPE, SHAPE))
EGRESS_ONLY = encode(Tree(SHAPE, None))


def workload_of(layout: CgroupLayout, cgroup: Path, qos: QosClass) -> Workload:
    """Return the workload of an existing cgroup."""
    key = CgroupId(layout.hierarchy, cgroup.stat().st_ino)
    path = "/" + str(cgroup.relative_to(layout.mount))
    return Workload(cgroup.name, key, path, qos, cgroup.name, "")


def load_programs() -> Classifier:
    """Load the classifying programs with the default mask of the mark."""
    system = CLASS_OF_TIER[QosClass.SYSTEM]
    return Classifier(major=MAJOR, system_class=system, mark_mask=0xF)


def uplink(host: Host, device: str = "up0") -> Target:
    """Return a device of the host as a link target; to be called in the host's namespace."""
    return Target(TargetKind.LINK, network_namespace(), host.ifindex(device), device)


def veth(host: Host, pod: str) -> Target:
    """Return the host's end of the veth of *pod*."""
    device = f"veth-{pod}"
    return Target(TargetKind.VETH, network_namespace(), host.ifindex(device), device)


def link_executor(
    state_dir: Path, programs: Programs | None = None, trace: Trace = no_trace
) -> Executor:
    """Return a new executor for the knobs of links, as a new process makes it."""
    knobs = (TcTree(programs), TcPodFilter(programs), TcCeiling())
    return Executor(Journal(state_dir / "journal", trace), knobs, trace)


def change(executor: Executor, target: Target, knob: Knob, value: str) -> Outcome:
    """Set a knob from its present value to *value*."""
    before = {reading.knob: reading.value for reading in executor.read([target])}
    action = Action(
        target=target,
        knob=knob,
        previous=before[knob],
        value=KnobValue(value),
        reason="test",
    )
    (outcome,) = executor.execute([action], now_ns=0)
    return outcome
