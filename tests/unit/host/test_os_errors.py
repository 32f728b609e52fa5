# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Errors of the operating system become sentences without numbers."""

import errno
import os
from pathlib import Path

import pytest

from controller.host.os_errors import reason, sentence


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_no_error_has_its_number(number: int) -> None:
    for error in (OSError(number, os.strerror(number)), OSError(number, os.strerror(number), "/x")):
        assert "Errno" not in sentence(error)
        assert sentence(error).endswith(reason(error))
    assert sentence(error).startswith("/x: ")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(FileNotFoundError) as error:
        Path("/nope").read_text()
    assert sentence(error.value) == "/nope: there is no such file or directory"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PermissionError(errno.EPERM, "it belongs to user 7", "/x"), "/x: it belongs to user 7"),
        (FileExistsError(None, "exists already", "/x"), "/x: exists already"),
        (TimeoutError("timed out"), "timed out"),
        (ValueError("not a number"), "not a number"),
    ],
)
def test_a_text_of_our_own_is_kept(error: Exception, text: str) -> None:
    assert sentence(error) == text
