# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Classes on a host without resctrl: nothing is written, and the reason is told."""

import logging
from pathlib import Path

import pytest

from actuators.executor import Executor
from actuators.journal import Journal
from controller.config.sections.resctrl import ResctrlClass, ResctrlConfig
from controller.host.facts import CgroupLayout
from controller.reconcilers.resctrl import control_group
from controller.reconcilers.resctrl.class_groups import ClassState
from controller.reconcilers.resctrl.control_group import ControlGroups


def test_each_class_says_why_it_has_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(control_group, "find_mount", lambda: None)
    config = ResctrlConfig(
        manage=True,
        mount=False,
        group="sweetpoint-best-effort",
        adopted=False,
        monitor=False,
        rmid_reserve=0,
        classes=(ResctrlClass("gold", 0, 1, 1),),
    )
    layout = CgroupLayout(hierarchy="v2", mount=tmp_path, version="v2", unified=tmp_path)
    with caplog.at_level(logging.WARNING):
        control = ControlGroups(config, Executor(Journal(tmp_path / "journal"), ()), layout)
    assert "resctrl.classes have no effect: resctrl is not mounted" in caplog.text
    assert not control.reconcile(0, None)
    (found,) = control.state.classes
    assert found == ClassState(
        name="gold", present=False, tasks=0, problem="resctrl is not mounted"
    )
    assert not control.moves_tasks
