# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""A small JSON file beside the journal, for who runs here next."""

import json
import os
from pathlib import Path

__all__ = ("write_json",)


def write_json(path: Path, value: object) -> None:
    """Replace *path* by *value*, whole or not at all; only root may read it.

    Not synced: it must outlive processes, not the machine.

    :raises OSError: it cannot be written.
    """
    new = path.with_suffix(".new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        json.dump(value, file)
    new.replace(path)
