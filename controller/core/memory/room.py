# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Room: the memory that best-effort work may need, and the limits that follow from it.

It is feed-forward: capacity, less a margin, less the peak of what everything else needs. A process
that the kernel kills for want of memory is the largest one, not the one that grew. Where a service
uses more than it requested, that is the service, also beside best-effort processes with an
oom_score_adj of 1000. A limit of best-effort work is what saves it: memory.low and memory.min do
not (tried on 6.12, with services of 90 and 180 MiB).
"""

from collections import deque
import math

from controller.core.model import MemoryUse
from controller.core.settings import HostFacts, MemoryGuard
from controller.core.units import MIB, NS_PER_SEC

__all__ = (
    "SOON_BYTES",
    "RoomMeter",
    "capacity_bytes",
    "limit_bytes",
    "margin_bytes",
    "squeezed_bytes",
)

_LEAST_MARGIN = 0.03
# Less than this may be gone within a second: work that starts takes some gigabytes.
SOON_BYTES = 4 << 30
# kubelet's default hard eviction, which starts at so much available memory
# (pkg/kubelet/eviction/defaults_linux.go). It is looked at every 10 s only.
_KUBELET_EVICTS = 100 * MIB
_BEFORE_KUBELET = 0.01
_PEAK_NS = 60 * NS_PER_SEC
# v2: a limit below the use kills at once, so a lower one stays this far above it. The use may grow
# between the reading and the write, which are in one tick.
_ABOVE_USE = 64 * MIB
# v1: the kernel refuses a limit below what it cannot reclaim, without another effect. It is tried
# again in the next tick.
_ABOVE_NEED = 8 * MIB
# v1: one write reclaims at most so much page cache in the time of the control thread (180 MiB took
# 0.6 ms on 6.18).
_RECLAIM_STEP = 64 * MIB
# v1: while the node has memory a squeeze for a service leaves best-effort work so much above its
# need, an eighth of the capacity between these two. The limit is moved in each tick meanwhile, so
# only work that grows by more than that within a tick is ended.
_LEAST_SPARED = 64 * MIB
_MOST_SPARED = 1 << 30


def capacity_bytes(guard: MemoryGuard, host: HostFacts) -> int | None:
    """Return the memory that all work shares; ``None``: not known."""
    return host.memory_bytes if guard.capacity_bytes is None else guard.capacity_bytes


def margin_bytes(guard: MemoryGuard, host: HostFacts) -> int:
    """Return the memory that stays free of best-effort work, beside what others need.

    It is 3 % at least. On a whole host it is twice the high watermarks or more, so that the kernel
    does not reclaim, and more than where kubelet begins to evict.
    """
    if guard.margin_bytes is not None:
        return guard.margin_bytes
    capacity = capacity_bytes(guard, host) or 0
    least = round(_LEAST_MARGIN * capacity)
    if guard.capacity_bytes is not None:
        return least
    kubelet = _KUBELET_EVICTS + round(_BEFORE_KUBELET * capacity)
    return max(least, 2 * host.high_watermark_bytes, kubelet)


class RoomMeter:
    """The room now; ``others_bytes`` is the peak of what everything else needed within 60 s."""

    __slots__ = ("_peaks", "others_bytes")

    def __init__(self) -> None:
        # Times and amounts, both falling from the last to the first by time and by amount.
        self._peaks: deque[tuple[int, int]] = deque()
        self.others_bytes = 0

    def update(self, now_ns: int, others_bytes: int, capacity: int, margin: int) -> int:
        """Return the room in bytes, below 0 if the others need more than they may."""
        peaks = self._peaks
        while peaks and peaks[-1][1] <= others_bytes:
            peaks.pop()
        peaks.append((now_ns, others_bytes))
        while peaks[0][0] <= now_ns - _PEAK_NS:
            peaks.popleft()
        self.others_bytes = peaks[0][1]
        return capacity - margin - self.others_bytes


def squeezed_bytes(use: MemoryUse, top_bytes: int, part: float, capacity: int) -> float:
    """Return what a cgroup of v1 may hold at *part* (0 to 1) of a squeeze for a service.

    *top_bytes* is what it used when the squeeze began. Equal steps of *part* are equal factors,
    down to what it needs and something to grow, so that nothing but page cache is taken.
    """
    spared = min(_MOST_SPARED, max(_LEAST_SPARED, capacity // 8))
    bottom = use.needed_bytes + spared
    return float(bottom * (max(top_bytes, bottom) / bottom) ** (1.0 - part))


def limit_bytes(
    use: MemoryUse, spare_bytes: int, now_bytes: float, most_bytes: float = math.inf
) -> float:
    """Return the limit of a cgroup whose limit is *now_bytes*, infinity for none.

    *spare_bytes* is what all limited cgroups leave of the room; below 0: they need more than the
    room. Each may take all of it, because a limit that is not needed would kill, but no more than
    *most_bytes*. A limit is raised only to that, and lowered to that or as far as the use allows;
    in whole MiB.
    """
    allowed = min(use.needed_bytes + spare_bytes, most_bytes) // MIB * MIB
    if allowed >= now_bytes:
        return allowed
    if use.cgroup.hierarchy == "v2":
        least = use.used_bytes + _ABOVE_USE
    else:
        least = max(use.needed_bytes + _ABOVE_NEED, use.used_bytes - _RECLAIM_STEP)
    return min(now_bytes, max(allowed, -(-least // MIB) * MIB))
