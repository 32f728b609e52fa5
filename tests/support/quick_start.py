# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The commands of the section "Quick start" of docs/KUBERNETES.md."""

from pathlib import Path
import re

from tests.support import shell

__all__ = ("quick_start",)

_PAGE = Path(__file__).parents[2] / "docs" / "KUBERNETES.md"


def quick_start() -> list[list[str]]:
    """Return the words of each command."""
    section = re.search(r"^## Quick start\n(.*?)^## ", _PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert section
    blocks = re.findall(r"^```sh\n(.*?)^```", section[1], re.DOTALL | re.MULTILINE)
    return [words for block in blocks for words in shell.commands(block)]
