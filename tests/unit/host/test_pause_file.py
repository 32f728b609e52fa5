# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The file of pauses and the texts that end them: bounded, and refused as a whole."""

import json
import os
from pathlib import Path
import stat
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
import pytest

from controller.host.pause_file import (
    EVERYTHING,
    LONGEST_S,
    MAX_ENTRIES,
    SERVICE,
    WORKLOAD,
    PauseEntry,
    PauseError,
    change_pauses,
    parse_end,
    pause_file,
    read_pauses,
)

NOW_S = 1_800_000_000.0  # 2027-01-15T08:00:00Z
ALL = PauseEntry(EVERYTHING, "", NOW_S + 60)
WEB = PauseEntry(SERVICE, "shop/web", NOW_S + 600)


@pytest.mark.parametrize(
    ("text", "until_s"),
    [
        ("30m", NOW_S + 1800),
        ("7h", NOW_S + 7 * 3600),
        ("2027-01-15T08:30:00Z", NOW_S + 1800),
        ("2027-01-15T09:30:00+01:00", NOW_S + 1800),
        ("2027-01-15T07:00:00Z", NOW_S - 3600),
    ],
)
def test_an_end_is_a_duration_or_a_time(text: str, until_s: float) -> None:
    assert parse_end(text, NOW_S) == until_s


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "neither a duration"),
        ("30", "neither a duration"),
        ("-30m", "neither a duration"),
        ("true", "neither a duration"),
        ("2027-01-15T08:30:00", "no time zone"),
        ("2027-01-15", "no time zone"),
        ("169h", "more than 7 days ahead"),
        ("9999-12-31T23:59:59Z", "more than 7 days ahead"),
        ("30m" + " " * 62, "longer than 64"),
        ("\x1b[31m\n", "neither a duration"),
        ("0001-01-01T00:00:00+23:00", ""),
    ],
)
def test_other_texts_are_refused(text: str, reason: str) -> None:
    try:
        until_s = parse_end(text, NOW_S)
    except PauseError as error:
        assert reason in str(error)
        assert str(error).isprintable()
        assert len(str(error)) < 500
    else:
        assert until_s < NOW_S, text  # long ago


@given(st.text(max_size=100))
def test_any_text_has_a_bounded_end_or_is_refused(text: str) -> None:
    try:
        assert parse_end(text, NOW_S) <= NOW_S + LONGEST_S
    except PauseError as error:
        assert str(error).isprintable()


def test_pauses_are_added_replaced_and_removed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert read_pauses(tmp_path, NOW_S) == ()
    assert change_pauses(state, [ALL, WEB], (), NOW_S) == (ALL, WEB)
    assert read_pauses(state, NOW_S) == (ALL, WEB)
    longer = ALL._replace(until_s=NOW_S + 900)
    job = PauseEntry(WORKLOAD, "batch:\udcff\n", NOW_S + 60)
    assert change_pauses(state, [longer, job], (), NOW_S) == (longer, WEB, job)
    assert read_pauses(state, NOW_S) == (longer, WEB, job)
    assert change_pauses(state, (), [(SERVICE, "shop/web")], NOW_S) == (longer, job)
    # Those that ended are dropped with the next change.
    assert change_pauses(state, [WEB], (), NOW_S + 100) == (longer, WEB)
    assert change_pauses(state, (), None, NOW_S) == ()
    assert read_pauses(state, NOW_S) == ()
    assert stat.S_IMODE(pause_file(state).stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


def test_there_are_limits(tmp_path: Path) -> None:
    many = [PauseEntry(SERVICE, f"s{i}" + "x" * 240, NOW_S + 60) for i in range(MAX_ENTRIES)]
    change_pauses(tmp_path, many, (), NOW_S)
    assert read_pauses(tmp_path, NOW_S) == tuple(many)
    with pytest.raises(PauseError, match="more than 64"):
        change_pauses(tmp_path, [WEB], (), NOW_S)
    for bad in (
        WEB._replace(name="x" * 254),
        WEB._replace(name=""),
        ALL._replace(name="x"),
        ALL._replace(until_s=NOW_S + 8 * 86400),
    ):
        with pytest.raises(PauseError):
            change_pauses(tmp_path, [bad], (), NOW_S)
    assert read_pauses(tmp_path, NOW_S) == tuple(many)


GOOD: dict[str, Any] = {"version": 1, "pauses": [{**ALL._asdict()}]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        "9" * 10_000,
        "\0\xff",
        json.dumps({**GOOD, "version": 2}),
        json.dumps({**GOOD, "version": "\x1b" * 1000}),
        json.dumps({"version": 1}),
        json.dumps({**GOOD, "pauses": {}}),
        json.dumps({**GOOD, "pauses": [1]}),
        json.dumps({**GOOD, "pauses": [{**ALL._asdict(), "more": 1}]}),
        json.dumps({**GOOD, "pauses": [{**ALL._asdict(), "scope": "node"}]}),
        json.dumps({**GOOD, "pauses": [{**ALL._asdict(), "scope": []}]}),
        json.dumps({**GOOD, "pauses": [{**ALL._asdict(), "until_s": None}]}),
        json.dumps({**GOOD, "pauses": [{**ALL._asdict(), "until_s": True}]}),
        json.dumps({**GOOD, "pauses": [{**ALL._asdict(), "until_s": float("nan")}]}),
        json.dumps({**GOOD, "pauses": [{**ALL._asdict(), "until_s": 10**400}]}),
        json.dumps({**GOOD, "pauses": [{**ALL._asdict(), "until_s": 1e300}]}),
        json.dumps({**GOOD, "pauses": [ALL._asdict()] * (MAX_ENTRIES + 1)}),
        json.dumps(GOOD) + " " * (1 << 18),
    ],
)
def test_a_damaged_file_is_refused_as_a_whole_and_can_be_replaced(
    tmp_path: Path, text: str
) -> None:
    pause_file(tmp_path).write_text(text)
    with pytest.raises(PauseError) as caught:
        read_pauses(tmp_path, NOW_S)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 400
    assert change_pauses(tmp_path, [ALL], (), NOW_S) == (ALL,)


def test_a_file_of_others_is_refused(tmp_path: Path) -> None:
    change_pauses(tmp_path, [ALL], (), NOW_S)
    file = pause_file(tmp_path)
    file.chmod(0o622)
    with pytest.raises(PauseError, match="others than its owner may write it"):
        read_pauses(tmp_path, NOW_S)
    file.rename(tmp_path / "other")
    file.symlink_to(tmp_path / "other")
    with pytest.raises(PauseError):
        read_pauses(tmp_path, NOW_S)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(PauseError):
        read_pauses(tmp_path, NOW_S)
