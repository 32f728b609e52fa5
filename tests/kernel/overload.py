# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""An overload of one CPU with a known cause, also on a busy machine.

The root of the test's cgroups has such a high weight that other work on that CPU hardly matters.
The culprit has a higher weight than the service: it runs whenever it may, even at the floor of its
quota, and the service waits for milliseconds. The sweet point of the service is 0.1 ms.
"""

import os
from pathlib import Path

from tests.support.beside import IN_CHILD

__all__ = ("CPU", "PROFILE", "outweigh")

# Tests of two processes that overload the same CPU at the same time would be each other's cause.
CPU = (max if IN_CHILD in os.environ else min)(os.sched_getaffinity(0))
PROFILE = """\
name: tight
indicators:
  runq_p99:
    {sweet_point: 100us, resolution: 10us, window: 1s, filter: 0s, gains: {kp: 1, ti: 200ms}}
channels: [cpu]
sched_idle: false
knobs: {cpu.quota: {floor: 250mcpu, squeeze: 10/s}}
evict: {enabled: true, after: 2s}
"""


def outweigh(cgroup: Path, times: int = 10) -> None:
    """Multiply the weight of *cgroup* by *times*."""
    (file,) = (cgroup / name for name in ("cpu.shares", "cpu.weight") if (cgroup / name).exists())
    file.write_text(str(int(file.read_text()) * times))
