# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The file with the candidate of a trial: bounded, and root's alone."""

import json
from pathlib import Path
import stat

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.host.candidate_file import (
    CandidateEntry,
    CandidateError,
    candidate_file,
    read_candidate,
    remove_candidate,
    write_candidate,
)

NOW_S = 1_800_000_000.0  # 2027-01-15T08:00:00Z
ENTRY = CandidateEntry("name: x\nset: {reserve: 0cpu}\n", "/root/x.yaml", NOW_S + 160.25)


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_candidate(tmp_path, NOW_S) is None
    write_candidate(tmp_path, ENTRY, NOW_S)
    assert read_candidate(tmp_path, NOW_S) == ENTRY
    assert stat.S_IMODE(candidate_file(tmp_path).stat().st_mode) == 0o600


def test_only_the_own_one_is_removed(tmp_path: Path) -> None:
    write_candidate(tmp_path, ENTRY, NOW_S)
    assert not remove_candidate(tmp_path, NOW_S, ENTRY.until_s + 1)
    assert candidate_file(tmp_path).exists()
    assert remove_candidate(tmp_path, NOW_S, ENTRY.until_s)
    assert not remove_candidate(tmp_path, NOW_S, ENTRY.until_s)
    write_candidate(tmp_path, ENTRY, NOW_S)
    assert remove_candidate(tmp_path, NOW_S)
    assert not remove_candidate(tmp_path, NOW_S)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (ENTRY._replace(until_s=NOW_S + 26 * 3600), "more than 24 h ahead"),
        (ENTRY._replace(text="#" * 16385), "longer than 16384 characters"),
    ],
)
def test_what_is_too_much_is_not_written(
    entry: CandidateEntry, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CandidateError, match=message):
        write_candidate(tmp_path, entry, NOW_S)
    assert not candidate_file(tmp_path).exists()


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    write_candidate(tmp_path, ENTRY, NOW_S)
    candidate_file(tmp_path).chmod(0o666)
    with pytest.raises(CandidateError, match="others than its owner may write it"):
        read_candidate(tmp_path, NOW_S)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2}, {"until_s": "soon"}, {"until_s": None}, {"until_s": float("inf")},
        {"until_s": NOW_S + 1e6}, {"text": 1}, {"origin": None}, {"more": 1},
    ],
)  # fmt: skip
def test_a_file_with_other_values_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    write_candidate(tmp_path, ENTRY, NOW_S)
    path = candidate_file(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CandidateError):
        read_candidate(tmp_path, NOW_S)


@given(data=st.binary(max_size=40) | st.sampled_from([b"[" * 90_000, b"1" * 200_000]))
def test_a_damaged_file_is_refused(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    state_dir = tmp_path_factory.mktemp("state")
    candidate_file(state_dir).write_bytes(data)
    candidate_file(state_dir).chmod(0o600)
    with pytest.raises(CandidateError):
        read_candidate(state_dir, NOW_S)
