# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The labels of the Node that an earlier agent stored."""

import json
import os
from pathlib import Path

import pytest

from controller.agent.node_labels import LabelOrigin, NodeLabels


def test_what_was_stored_is_known_after_a_restart(tmp_path: Path) -> None:
    labels = NodeLabels(tmp_path)
    assert (labels.labels, labels.origin) == (None, LabelOrigin.UNKNOWN)
    labels.take({"pool": "canary"})
    labels = NodeLabels(tmp_path)
    assert (labels.labels, labels.origin) == ({"pool": "canary"}, LabelOrigin.KEPT)
    # As after a loss of the state directory.
    (tmp_path / "node-labels.json").unlink()
    labels.store()
    assert NodeLabels(tmp_path).labels == {"pool": "canary"}
    assert NodeLabels(None).labels is None


@pytest.mark.parametrize("text", ["[]", "{", '{"a": 1}', "[" * 10_000, "x" * (1 << 20) + "x"])
def test_a_damaged_file_of_labels_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "node-labels.json").write_text(text)
    assert NodeLabels(tmp_path).labels is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_used(tmp_path: Path) -> None:
    file = tmp_path / "node-labels.json"
    file.write_text(json.dumps({"pool": "canary"}))
    os.chown(file, 65534, 65534)
    assert NodeLabels(tmp_path).labels is None


def test_labels_that_cannot_be_stored_are_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    labels = NodeLabels(tmp_path / "absent")
    labels.take({"pool": "canary"})
    assert labels.labels == {"pool": "canary"}
    assert "a restart without the API server has older labels" in caplog.text


def test_reaches_that_could_not_be_read_stay_as_they_were(tmp_path: Path) -> None:
    reach = {"rollout.sweetpoint.dev/canary": "nowhere"}
    NodeLabels(tmp_path).take({"pool": "old"} | reach)
    labels = NodeLabels(tmp_path)
    labels.take({"pool": "new"}, with_reaches=False)
    before = labels.labels
    assert before == {"pool": "new"} | reach
    labels.take({"pool": "new"}, with_reaches=False)
    assert labels.labels is before
    labels.take({"pool": "new"})
    assert labels.labels == {"pool": "new"}
