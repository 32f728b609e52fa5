# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Removal of the taint without the agent's configuration."""

from pathlib import Path

import pytest

from controller.kube.cleanup import remove_overload_taint, remove_taint_note, write_taint_note
from controller.kube.overload_taint import OverloadTaint
from tests.support.kube.api_stand_in import ApiStandIn
from tests.unit.kube.objects import FOREIGN, taints_and_end


def test_the_taint_is_removed_with_the_help_of_the_note(
    server: ApiStandIn, taint: OverloadTaint, tmp_path: Path
) -> None:
    assert remove_overload_taint(tmp_path) == (True, "")
    taint.set()
    write_taint_note(tmp_path, "n1", tmp_path / "kubeconfig")
    server.before = lambda _: (0, {})
    done, text = remove_overload_taint(tmp_path)
    assert not done and text.startswith("node n1: the overload taint may still be present: ")
    server.before = lambda _: None
    assert remove_overload_taint(tmp_path) == (True, "node n1: the overload taint was removed")
    assert taints_and_end(server) == ([FOREIGN], None)
    assert remove_overload_taint(tmp_path) == (True, ""), "the note was removed too"
    write_taint_note(tmp_path, "n1", tmp_path / "kubeconfig")
    assert remove_overload_taint(tmp_path) == (True, "node n1: the overload taint is not present")
    write_taint_note(tmp_path, "n1", None)
    remove_taint_note(tmp_path)
    remove_taint_note(tmp_path)
    (tmp_path / "node-mark.json").write_text("{")
    assert not remove_overload_taint(tmp_path)[0]


def test_a_note_that_cannot_be_removed_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "node-mark.json").mkdir()  # as on a read-only file system, unlink(2) fails
    remove_taint_note(tmp_path)
    assert "cannot remove" in caplog.text
