# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The test kernel has the features that it was built for."""

import ctypes
import os
from pathlib import Path
import subprocess

import pytest

from controller.host.facts import find_cgroup_layout

pytestmark = pytest.mark.vm

PR_SCHED_CORE, PR_SCHED_CORE_GET = 62, 0


def test_pure_cgroup_v2() -> None:
    layout = find_cgroup_layout()
    assert layout.version == "v2"
    assert layout.unified == layout.mount
    assert {"cpu", "memory", "io"} <= set((layout.mount / "cgroup.controllers").read_text().split())


def test_two_threads_per_core_and_core_scheduling() -> None:
    siblings = Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list").read_text()
    assert siblings.strip() in ("0-1", "0,1")
    cookie = ctypes.c_uint64(1)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SCHED_CORE, PR_SCHED_CORE_GET, 0, 0, ctypes.byref(cookie)) == 0
    assert cookie.value == 0


def test_resctrl_monitors_read_values_of_the_test(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "resctrl", "resctrl", "/sys/fs/resctrl"], check=True)
    try:
        info = Path("/sys/fs/resctrl/info")
        assert (info / "L3" / "cbm_mask").read_text().strip() == "7ff"
        assert (info / "MB" / "bandwidth_gran").read_text().strip() == "10"
        table = Path("/sys/kernel/debug/resctrl_test/0/llc_occupancy")
        data = next(Path("/sys/fs/resctrl/mon_data").iterdir()) / "llc_occupancy"
        table.write_text("3")
        assert int(data.read_text()) == 3 * 65536
        table.write_text(hex(1 << 62))
        assert data.read_text().strip() == "Unavailable"
        table.write_text(hex(1 << 63))
        assert data.read_text().strip() == "Error"
        table.write_text("0")
    finally:
        subprocess.run(["umount", "/sys/fs/resctrl"], check=True)


def test_this_is_root_in_a_guest() -> None:
    assert os.geteuid() == 0
    assert "sweetpoint" in os.uname().release
