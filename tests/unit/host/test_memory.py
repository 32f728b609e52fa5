# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The hierarchy of the memory controller, and the kernel's watermarks."""

from pathlib import Path

from controller.host.memory import MemoryHierarchy, find_memory, high_watermark_bytes

V1 = "30 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
UNIFIED = Path("/sys/fs/cgroup")


def test_a_v1_mount_with_the_controller_is_the_one() -> None:
    found = find_memory(UNIFIED, V1)
    assert found == MemoryHierarchy("v1", Path("/sys/fs/cgroup/memory"))
    assert found.hierarchy == "memory"
    part = V1.replace("/ /sys", "/pod /own")
    assert find_memory(None, part + V1) == found
    assert find_memory(None, part).mount == Path("/own/fs/cgroup/memory")
    found = find_memory(UNIFIED, V1.replace("memory", "cpu"))
    assert found == MemoryHierarchy("v2", UNIFIED)
    assert found.hierarchy == "v2"


def test_high_watermarks_of_all_zones_are_summed(tmp_path: Path) -> None:
    zones = tmp_path / "zoneinfo"
    zones.write_text(
        "Node 0, zone DMA\n  pages free 10\n        min 1\n        low 2\n        high     43\n"
        "  pagesets\n    cpu: 0\n              high:     378\n              high_min: 18\n"
        "Node 0, zone Normal\n        high     1000\n"
    )
    assert high_watermark_bytes(zones, 4096) == 4096 * 1043
    assert high_watermark_bytes(tmp_path / "none") == 0
