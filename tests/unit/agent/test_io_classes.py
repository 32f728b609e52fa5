# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Classes for disks on a host: what has an effect there, and the reason for the rest."""

import logging
from pathlib import Path
from typing import Literal

import pytest

from controller.agent.io_classes import resolve_io_classes
from controller.agent.knob_targets import KnobTargets
from controller.config.sections.io import IoClassConfig
from controller.core.model import CgroupId, Knob, KnobValue, QosClass, Workload
from controller.core.settings import DiskLimits, HostFacts, IoClass, SafeState, Settings
from controller.host.facts import CgroupLayout
from controller.workloads.changes import diff_workloads

MISSING = DiskLimits("/dev/sweetpoint-no-such", rbps=1)
GOLD = IoClassConfig("gold", 800, (MISSING,))
BULK = IoClassConfig("bulk", limits=(MISSING,))


def layout(mount: Path, controllers: str, version: Literal["v1", "v2"] = "v2") -> CgroupLayout:
    (mount / "cgroup.controllers").write_text(controllers)
    return CgroupLayout(
        hierarchy="v2" if version == "v2" else "cpu", mount=mount, version=version, unified=mount
    )


def test_what_exists_has_an_effect_and_the_rest_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    there = layout(tmp_path, "cpu io")
    found = resolve_io_classes((GOLD, BULK), there, weighs=True)
    text = "/dev/sweetpoint-no-such is ignored: No such file or directory"
    assert found == {
        "gold": IoClass(800, KnobValue("max"), text),
        "bulk": IoClass(None, KnobValue("max"), text),
    }
    assert caplog.messages == [f"io.classes: gold, bulk: {text}"]
    assert found["gold"].knobs == {Knob.IO_WEIGHT}


@pytest.mark.parametrize(
    ("controllers", "version", "message"),
    [
        ("cpu memory", "v2", "has no io controller"),
        ("cpu io", "v1", "cgroup v1 has no io.weight and io.max"),
    ],
)
def test_without_the_controller_a_class_has_no_effect(
    tmp_path: Path, controllers: str, version: Literal["v1", "v2"], message: str
) -> None:
    host = layout(tmp_path, controllers, version)
    (found,) = resolve_io_classes((GOLD,), host, weighs=True).values()
    assert not found.knobs
    assert "no effect" in found.problem and message in found.problem


def test_a_weight_needs_a_disk_with_iocost(tmp_path: Path) -> None:
    classes = (IoClassConfig("gold", 800),)
    (found,) = resolve_io_classes(classes, layout(tmp_path, "io"), weighs=False).values()
    assert not found.knobs
    assert "no disk follows io.weight" in found.problem


def test_the_knobs_of_a_class_are_read_of_workloads_that_have_it() -> None:
    slice_ = "/kubepods.slice/kubepods-burstable.slice"
    served, system, work = (
        Workload(
            str(qos),
            CgroupId("v2", number),
            f"{slice_}/pod{number}",
            qos,
            "",
            "",
            io_class="gold",
        )
        for number, qos in enumerate((QosClass.LS, QosClass.SYSTEM, QosClass.BE))
    )
    other = served._replace(cgroup=CgroupId("v2", 9), path="/other", io_class="")
    targets = KnobTargets()
    targets.reconfigure(
        Settings(
            tick_ns=1,
            host=HostFacts(cpus=1),
            profiles={},
            reserve_cpus=0,
            safe_state=SafeState.STATIC,
            stale_ticks=5,
            io_classes={"gold": IoClass(800, KnobValue("8:0 rbps=1"))},
        )
    )
    workloads = (served, system, work, other)
    targets.set_workloads(workloads, diff_workloads((), workloads))
    found = {each.path: knobs for each, knobs in targets.select([]).items()}
    of_class = {Knob.IO_WEIGHT, Knob.IO_MAX}
    assert found[served.path] == found[system.path] == of_class
    assert Knob.CPU_QUOTA in found[work.path]
    assert other.path not in found
    # Another agent of the node has one of them.
    targets.cede(frozenset({Knob.IO_MAX}))
    assert {each.path: knobs for each, knobs in targets.select([]).items()}[served.path] == {
        Knob.IO_WEIGHT
    }
