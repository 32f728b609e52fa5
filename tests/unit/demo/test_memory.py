# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the memory phases can run on a host."""

from pathlib import Path

from controller.demo.memory import missing_memory
from controller.host.memory import MemoryHierarchy


def test_hosts_without_the_phases(tmp_path: Path) -> None:
    meminfo, control = tmp_path / "meminfo", tmp_path / "cgroup.subtree_control"
    meminfo.write_text("MemTotal:  100 kB\nSwapTotal:  0 kB\n")
    control.write_text("cpu io\n")
    assert missing_memory(MemoryHierarchy("v1", tmp_path), meminfo) is None
    assert "not mounted" in (missing_memory(MemoryHierarchy("v2", None), meminfo) or "")
    assert str(control) in (missing_memory(MemoryHierarchy("v2", tmp_path), meminfo) or "")
    control.write_text("cpu memory\n")
    assert missing_memory(MemoryHierarchy("v2", tmp_path), meminfo) is None
    meminfo.write_text("SwapTotal:  4 kB\n")
    assert "swap is on" in (missing_memory(MemoryHierarchy("v1", tmp_path), meminfo) or "")
