# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""CPUs that kubelet gave to one pod alone, by its file, which may be hostile."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from controller.host import exclusive_cpus as module
from controller.host.exclusive_cpus import SharedCpus, exclusive_cpus, read_state

STATE: dict[str, Any] = {
    "policyName": "static",
    "defaultCpuSet": "0,4-7",
    "entries": {"uid-1": {"web": "1-2", "side": "3"}, "uid-2": {"part": "0,4-7"}, "uid-3": {}},
    "checksum": 1,
}


def state(**changes: Any) -> str:
    return json.dumps(STATE | changes)


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "online_cpus", lambda: tuple(range(8)))
    monkeypatch.setattr(module, "_POLL_NS", 0)


def test_what_pods_share_is_not_exclusive() -> None:
    assert exclusive_cpus(state()) == {1, 2, 3}


def test_another_policy_makes_nothing_exclusive() -> None:
    assert exclusive_cpus(state(policyName="none")) == frozenset()
    assert exclusive_cpus('{"policyName":"none","defaultCpuSet":"","checksum":1}') == frozenset()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "7",
        "{}",
        "[" * 100_000,
        state(policyName="static", defaultCpuSet=None),
        state(entries=[1]),
        state(entries={"uid": "1"}),
        state(entries={"uid": {"web": 1}}),
        state(entries={"uid": {"web": "1;2"}}),
        state(entries={"uid": {"web": "-1"}}),
        state(entries={"uid": {"web": "0-99999999999"}}),
        state(entries={"uid": {"web": ",".join(["0-9999"] * 10_000)}}),
    ],
)
def test_a_corrupt_file_is_no_isolation(text: str) -> None:
    with pytest.raises(ValueError, match=r"form|list|column"):
        exclusive_cpus(text)


def test_only_a_file_of_kubelet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cpu_manager_state"
    assert read_state(path) == frozenset()
    (tmp_path / "other").write_text(state())
    path.symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic"):
        read_state(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match="regular"):
        read_state(path)
    path.unlink()
    path.write_text(" " * (2 << 20))
    with pytest.raises(ValueError, match="long"):
        read_state(path)


def test_the_file_is_followed_and_read_only_when_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpu_manager_state"
    reads = []

    def counted(where: Path) -> frozenset[int]:
        reads.append(where)
        return read_state(where)

    monkeypatch.setattr(module, "read_state", counted)
    shared = SharedCpus(path)
    assert shared.poll() == ""
    path.write_text(state())
    assert [shared.poll() for _ in range(3)] == ["0,4-7"] * 3
    assert len(reads) == 2
    path.write_text(state(defaultCpuSet="0-7", entries={}))
    assert shared.poll() == ""
    path.write_text(state(entries={"uid": {"web": "7"}}, defaultCpuSet="0-6"))
    assert shared.poll() == "0-6"
    path.unlink()
    assert shared.poll() == ""


def test_a_bad_file_is_told_once_and_ends_the_isolation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cpu_manager_state"
    path.write_text(state())
    shared = SharedCpus(path)
    assert shared.poll() == "0,4-7"
    path.write_bytes(b"\xff" * 50_000)
    with caplog.at_level(logging.WARNING):
        assert [shared.poll() for _ in range(3)] == [""] * 3
    (record,) = caplog.records
    assert "no UTF-8" in record.getMessage() and len(record.getMessage()) < 400


def test_best_effort_work_never_gets_an_empty_set(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cpu_manager_state"
    path.write_text(state(entries={"uid": {"web": "0-7"}}, defaultCpuSet=""))
    shared = SharedCpus(path)
    with caplog.at_level(logging.WARNING):
        assert [shared.poll() for _ in range(3)] == [""] * 3
    (record,) = caplog.records
    assert "all CPUs are exclusive" in record.getMessage()
