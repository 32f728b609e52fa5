# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""An overload of one CPU whose cause is beyond doubt, however busy the machine is.

The root of the test's cgroups weighs so much that others on that CPU hardly count. The culprit
outweighs the service: whenever the culprit may run it does, also at the floor of its quota, and
the service waits for milliseconds. Its sweet point is a tenth of one.
"""

import os
from pathlib import Path

__all__ = ("CPU", "PROFILE", "outweigh")

CPU = max(os.sched_getaffinity(0))
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
    """Make *cgroup* weigh *times* what its siblings do."""
    (file,) = (cgroup / name for name in ("cpu.shares", "cpu.weight") if (cgroup / name).exists())
    file.write_text(str(int(file.read_text()) * times))
