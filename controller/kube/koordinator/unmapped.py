# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Keys of Koordinator's ConfigMap, and why some of its settings have no counterpart."""

import re

from controller.kube.koordinator.source import Field

__all__ = ("HOST_APPS", "QOS", "SYSTEM", "THRESHOLDS", "why_not")

THRESHOLDS = "resource-threshold-config"
QOS = "resource-qos-config"
SYSTEM = "system-config"
HOST_APPS = "host-application-config"
# Why a field has no counterpart; the first pattern that matches the field's path applies.
_REASONS: tuple[tuple[str, str], ...] = (
    (rf"{THRESHOLDS}/cpuSuppressPolicy", "cpu.quota is the knob, whatever the policy"),
    (
        rf"{THRESHOLDS}/cpuSuppressMinPercent",
        "the floor of cpu.quota is of each best-effort workload, not of all (knobs in the profile)",
    ),
    (
        rf"{THRESHOLDS}/.*[eE]vict.*",
        "evictions follow what a service suffers, not how much is used (evict in the profile)",
    ),
    (
        rf"{QOS}/.*/cpuQOS/groupIdentity",
        "kernels of Anolis only; sched_idle does that for best-effort work on others",
    ),
    (rf"{QOS}/.*/cpuQOS/coreExpeller", "core_scheduling is for best-effort work, as a whole"),
    (rf"{QOS}/(lsr|ls|system)Class/cpuQOS/.*", "only best-effort work is made idle"),
    (rf"{QOS}/.*/memoryQOS/.*", "memory.high moves with what services suffer; no fixed values"),
    (rf"{QOS}/ls.*Class/blkioQOS/.*", "koordlet has limits of disks for BE and the root only"),
    (
        rf"{QOS}/cgroupRoot/blkioQOS/.*",
        "the kernel's own model of the disk is used (io.iocost), on all disks in use",
    ),
    (rf"{QOS}/.*/blkioQOS/.*", "io.weight and io.max move with what services suffer (section io)"),
    (rf"{QOS}/systemClass/resctrlQOS/.*", "koordlet has resctrl groups for LSR, LS and BE only"),
    (rf"{QOS}/policies/netQOSPolicy", "one way of shaping only (section network)"),
    (
        r"cpu-burst-config/.*",
        "no burst on pods: kubelet could not lower a limit below it in place",
    ),
    (rf"{SYSTEM}/.*", "settings of the kernel are left alone"),
    (
        r"colocation-config/.*",
        "see kubernetes.capacity: what best-effort work may have is measured",
    ),
    (r"cpu-normalization-config/.*|resource-amplification-config/.*", "for the scheduler"),
    (rf"{HOST_APPS}/.*", "cannot be expressed as a workload: its cgroup, name or class"),
    (r".*/nodeStrategies|.*/nodeConfigs", "with --node-labels that of such a node is taken"),
)


def why_not(at: Field) -> str:
    """Return why the field *at* has no counterpart."""
    path = "/".join(at)
    reasons = (text for pattern, text in _REASONS if re.fullmatch(pattern, path))
    return next(reasons, "not known to this import")
