# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of io.cost.qos: read, written with and without parameters, and not on other hosts."""

from pathlib import Path
from typing import Literal

import pytest

from actuators.base import GoneError, RefusedError
from actuators.io_cost import COST_OFF, COST_ON, IoCost, cost_target
from controller.core.model import KnobValue
from controller.host.facts import CgroupLayout

PARAMETERS = "rpct=95.00 rlat=5000 wpct=95.00 wlat=9000 min=50.00 max=150.00"
DISK = cost_target("8:16")


@pytest.fixture
def actuator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IoCost:
    (tmp_path / "devices/8:16").mkdir(parents=True)
    (tmp_path / "mount").mkdir()
    monkeypatch.setattr(IoCost, "devices", tmp_path / "devices")
    return IoCost(layout(tmp_path / "mount"))


def layout(mount: Path, version: Literal["v1", "v2"] = "v2") -> CgroupLayout:
    return CgroupLayout(hierarchy="v2", mount=mount, version=version, unified=mount)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", COST_OFF),
        (f"8:1 enable=1 ctrl=auto {PARAMETERS}\n", COST_OFF),
        (f"8:16 enable=0 ctrl=auto {PARAMETERS}\n", COST_OFF),
        (f"8:0 enable=0 ctrl=auto\n8:16 enable=1 ctrl=auto {PARAMETERS}\n", COST_ON),
        (f"8:16 enable=0 ctrl=user {PARAMETERS}\n", f"enable=0 ctrl=user {PARAMETERS}"),
    ],
)
def test_a_line_is_read(actuator: IoCost, tmp_path: Path, text: str, value: str) -> None:
    (tmp_path / "mount/io.cost.qos").write_text(text)
    assert actuator.read(DISK) == value


@pytest.mark.parametrize("words", ["enable=2 ctrl=auto", "ctrl=auto", "enable", "enable=1"])
def test_an_odd_line_is_no_value(actuator: IoCost, tmp_path: Path, words: str) -> None:
    (tmp_path / "mount/io.cost.qos").write_text(f"8:16 {words}\n")
    with pytest.raises(RefusedError):
        actuator.read(DISK)


def test_parameters_are_written_only_where_they_were_set(actuator: IoCost) -> None:
    # With ctrl=auto a parameter would turn the line to ctrl=user.
    user = KnobValue(f"enable=0 ctrl=user {PARAMETERS}")
    for previous, value in ((COST_OFF, COST_ON), (COST_ON, COST_OFF), (COST_ON, user)):
        (step,) = actuator.steps(previous, value)
        assert (step.file, step.text, step.state) == ("io.cost.qos", value, value)
    assert actuator.steps(COST_ON, COST_ON) == ()


def test_a_removed_disk_is_gone(actuator: IoCost, tmp_path: Path) -> None:
    (tmp_path / "mount/io.cost.qos").touch()
    with pytest.raises(GoneError):
        actuator.read(cost_target("8:32"))


def test_a_host_without_the_file_has_no_such_knob(actuator: IoCost, tmp_path: Path) -> None:
    assert "io.cost.qos" in (actuator.unsupported_reason() or "")
    (tmp_path / "mount/io.cost.qos").touch()
    assert actuator.unsupported_reason() is None
    assert IoCost(layout(tmp_path / "mount", "v1")).unsupported_reason()


def test_disks_have_ids_of_their_own() -> None:
    disks = ("8:16", "8:0", "0:8", "259:0")
    assert len({cost_target(each).place for each in disks}) == len(disks)
