# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The runs that the CPUs have not finished, from memory that the kernel writes meanwhile."""

import numpy as np
from numpy.typing import NDArray

__all__ = ("unfinished_runs",)


def unfinished_runs(words: NDArray[np.int64], now_ns: int) -> tuple[int, list[tuple[int, int]]]:
    """Return the time of the newest event, and the slot and length of each CPU's run up to now.

    All in ns. The columns are read in the order opposite to that in which ``change_run`` of
    ``bpf/sched.bpf.c`` writes them. So a switch in between makes a run too short, which the next
    reading makes up for. In the other order a slot would be charged with the time that another
    slot ran, or that the CPU was idle, before it. The order holds where CPUs keep that of writes
    and that of reads, as x86 does; on arm64 a reading may now and then be such a charge.

    :param words: since, slot, sync_clock and sync_mono of each CPU, see ``struct cpu``.
    :param now_ns: CLOCK_MONOTONIC, read before the call.
    """
    slots = words[:, 1].tolist()
    begins = words[:, 0].tolist()
    clocks = words[:, 2].tolist()
    times_ns = words[:, 3].tolist()
    newest_ns = max(times_ns)
    clock = clocks[times_ns.index(newest_ns)] + now_ns - newest_ns
    return newest_ns, [
        (slot, max(0, clock - since)) for slot, since in zip(slots, begins, strict=True) if since
    ]
