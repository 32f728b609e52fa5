# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Names that are not UTF-8, in texts that must be."""

import json
import os

import pytest

from controller.host.names import did_you_mean, printable, printable_name, utf8


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b"plain", "plain"),
        ("größe \U0001f600".encode(), "größe \U0001f600"),
        (b"\xff\xfe\x80bad", r"\xff\xfe\x80bad"),
        (b"serial\\x2dgetty", r"serial\x2dgetty"),
    ],
)
def test_bytes_that_are_not_utf8_are_shown_by_their_numbers(raw: bytes, name: str) -> None:
    assert printable_name(os.fsdecode(raw)) == name


@pytest.mark.parametrize("text", ["", "größe", "\udcff", "a\ud800\\\udc80\U0001f600"])
def test_any_text_is_json_that_other_programs_can_read(text: str) -> None:
    encoded = utf8(json.dumps(text, ensure_ascii=False)).decode()
    assert json.loads(encoded) == text.encode(errors="backslashreplace").decode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe \U0001f600 \\x1b", "größe \U0001f600 \\x1b"),
        ("\x1b[2Jx\r\n\x07\x7f\x9b", r"\x1b[2Jx\r\n\x07\x7f\x9b"),
        ("a\u202eb\u200b\ufeff\udcff", r"a\u202eb\u200b\ufeff\udcff"),
    ],
)
def test_no_character_controls_the_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("name", "known", "question"),
    [
        ("chekc", ["check", "explain"], "did you mean check?"),
        ("servces", ["reserve", "services"], "did you mean services?"),
        ("servces", ["reserve", "workloads"], ""),
        ("wbe", ["web"], "did you mean web?"),
        ("enocde", ["encode", "decode"], "did you mean encode?"),
        ("x", ["y"], ""),
        ("", ["y"], ""),
        ("a" * 10_000, ["a" * 253], "did you mean " + "a" * 253 + "?"),
        ("\x1b[3J", ["\x1b[2J"], r"did you mean \x1b[2J?"),
    ],
)
def test_only_similar_names_are_suggested(name: str, known: list[str], question: str) -> None:
    assert did_you_mean(name, known) == question
