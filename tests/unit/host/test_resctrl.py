# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Capabilities read from ``info/`` of resctrl, with the kernel's files on different hardware."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from controller.core.settings import MbaUnit, ResctrlFacts
from controller.host.resctrl import ResctrlMount, find_mount, parse_schemata, read_info

MONITOR = {
    "L3_MON/mon_features": "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n",
    "L3_MON/num_rmids": "224\n",
}
INTEL = {
    "L3/cbm_mask": "fffff\n",
    "L3/min_cbm_bits": "1\n",
    "L3/num_closids": "16\n",
    "L3/shareable_bits": "c0000\n",
    "L3/sparse_masks": "0\n",
    "MB/bandwidth_gran": "10\n",
    "MB/min_bandwidth": "10\n",
    "MB/delay_linear": "1\n",
    "MB/num_closids": "8\n",
    **MONITOR,
}
AMD = {
    "L3/cbm_mask": "ffff\n",
    "L3/min_cbm_bits": "1\n",
    "L3/num_closids": "16\n",
    "MB/bandwidth_gran": "1\n",
    "MB/min_bandwidth": "1\n",
    "MB/delay_linear": "0\n",
    "MB/num_closids": "16\n",
}


def mount(
    root: Path, info: Mapping[str, str], schemata: str, options: tuple[str, ...] = ()
) -> ResctrlMount:
    for name, text in info.items():
        path = root / "info" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "schemata").write_text(schemata)
    return ResctrlMount(root, frozenset(("rw", *options)))


def test_intel_in_percent(tmp_path: Path) -> None:
    text = "    MB:0=100;1= 50\n    L3:0=fffff;1=fffff\n"
    info = read_info(mount(tmp_path, INTEL, text))
    assert info.facts == ResctrlFacts(
        domains=(0, 1),
        mba_unit=MbaUnit.PERCENT,
        mba_min=10,
        mba_max=100,
        mba_step=10,
        llc_ways=20,
        llc_min_ways=1,
        bandwidth=True,
    )
    assert (info.closids, info.rmids, info.shareable) == (8, 224, 0xC0000)
    assert not info.cdp and not info.sparse
    assert "llc_occupancy" in info.features


def test_amd_in_absolute_steps(tmp_path: Path) -> None:
    info = read_info(mount(tmp_path, AMD, "MB:0=2048;1=2048;2=64\nL3:0=ffff;1=ffff;2=ffff\n"))
    facts = info.facts
    assert (facts.mba_unit, facts.mba_min, facts.mba_max) == (MbaUnit.ABSOLUTE, 1, 2048)
    assert facts.mba_step == 1
    assert facts.domains == (0, 1, 2)
    assert not facts.bandwidth


def test_the_kernels_control_loop_in_megabytes(tmp_path: Path) -> None:
    facts = read_info(mount(tmp_path, INTEL, "MB:0=4294967295\n", ("mba_MBps",))).facts
    assert (facts.mba_unit, facts.mba_min, facts.mba_max) == (MbaUnit.MBPS, 1, 2**32 - 1)
    assert facts.mba_step == 1


def test_separate_masks_for_code_and_data(tmp_path: Path) -> None:
    split = {name.replace("L3/", "L3CODE/"): text for name, text in INTEL.items()}
    text = "MB:0=100\nL3DATA:0=fffff\nL3CODE:0=fffff\n"
    info = read_info(mount(tmp_path, split, text, ("cdp",)))
    assert info.cdp
    assert (info.facts.llc_ways, info.facts.domains) == (20, (0,))


def test_monitoring_alone(tmp_path: Path) -> None:
    info = read_info(mount(tmp_path, MONITOR, ""))
    assert (info.facts.mba_max, info.facts.llc_ways, info.closids) == (0, 0, 0)
    assert info.facts.bandwidth


def test_schemata_with_padding_and_invalid_ones() -> None:
    assert parse_schemata("    MB:0= 20;12=100\nL3:0=00f\n") == {
        "MB": {0: "20", 12: "100"},
        "L3": {0: "00f"},
    }
    with pytest.raises(ValueError, match="has no resource"):
        parse_schemata("nonsense\n")


def test_find_mount() -> None:
    line = "40 24 0:35 / /sys/fs/resctrl rw,nosuid - resctrl resctrl rw,cdp,mba_MBps\n"
    found = find_mount(line)
    assert found is not None
    assert found.point == Path("/sys/fs/resctrl")
    assert {"cdp", "mba_MBps"} <= found.options
    assert find_mount(line.replace("resctrl", "tmpfs")) is None
    # A bind mount of a part, as in a container, is ignored.
    assert find_mount(line.replace(" / ", " /group ")) is None
