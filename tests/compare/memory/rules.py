# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What other programs do where memory is short, as functions of figures.

Each is stepped by ``policies``. Bytes everywhere.
"""

from collections.abc import Mapping

__all__ = (
    "KUBELET_AVAILABLE",
    "katalyst_limit",
    "koordinator_release",
    "koordinator_victims",
    "kubelet_is_short",
    "kubelet_victim",
)

# evictionHard memory.available, kubelet's default.
KUBELET_AVAILABLE = 100 << 20
_KOORDINATOR_BUFFER_PERCENT = 2


def kubelet_is_short(capacity: int, working_set: int, threshold: int = KUBELET_AVAILABLE) -> bool:
    """Whether less than *threshold* is available.

    Available is the capacity without the working set of everything
    (pkg/kubelet/eviction/helpers.go, makeSignalObservations).
    """
    return capacity - working_set < threshold


def kubelet_victim(pods: Mapping[str, int]) -> str | None:
    """Return the pod of least priority that uses most above its request; ``None``: there is none.

    *pods* are those of the job by their working sets; they request nothing and have all the same
    priority. The service, whose priority is higher, comes after them (rankMemoryPressure).
    """
    return max(pods, key=lambda pod: pods[pod], default=None)


def koordinator_release(capacity: int, used: int, threshold_percent: int = 70) -> int:
    """Return how much is to be freed, 0 below the threshold.

    Percentages are whole numbers, and the lower end is two of them below the threshold
    (pkg/koordlet/qosmanager/plugins/memoryevict/memory_evict.go).
    """
    percent = used * 100 // capacity
    if percent < threshold_percent:
        return 0
    lower = threshold_percent - _KOORDINATOR_BUFFER_PERCENT
    return capacity * (percent - lower) // 100


def koordinator_victims(release: int, pods: Mapping[str, int]) -> list[str]:
    """Return the *pods*, by what they use, that are killed to free *release*: the largest first."""
    found, freed = [], 0
    for pod in sorted(pods, key=lambda pod: -pods[pod]):
        if freed >= release:
            break
        found.append(pod)
        freed += pods[pod]
    return found


def katalyst_limit(reclaimed_used: int, free: int, watermark: int) -> int:
    """Return the limit of all best-effort work: what it uses, and what is free above *watermark*.

    (pkg/agent/sysadvisor/plugin/qosaware/resource/memory/plugin/memory_guard.go.)
    """
    return reclaimed_used + max(free - watermark, 0)
