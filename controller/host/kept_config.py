# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The configuration in force, kept in the state directory for as long as an agent runs.

An end in order removes it. A start that finds it follows a crash, of the agent, the guardian or the
machine. It is a record of the texts of the configuration file and its profiles, not of what they
mean, so an agent of another version reads it as it reads files.
"""

from collections.abc import Mapping
import contextlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from controller.host.state_dir import read_file, write_json

__all__ = ("KeptConfig", "forget_config", "keep_config", "read_config")

_NAME = "config.json"
_VERSION = 1


class KeptConfig(NamedTuple):
    """The texts of the files by absolute path, and the CPUs against which they were checked."""

    texts: Mapping[str, str]
    cpus: int


def read_config(state_dir: Path, file: Path) -> KeptConfig | None:
    """Return what is kept of the configuration file *file*; ``None``: nothing, or of another file.

    :raises OSError: it cannot be read, or does not belong to root alone.
    :raises ValueError: it is damaged, or of another version.
    """
    try:
        value = json.loads(read_file(state_dir / _NAME))
    except FileNotFoundError:
        return None
    if not isinstance(value, dict) or value.get("version") != _VERSION:
        raise ValueError(f"{state_dir / _NAME}: not of this version")
    texts: Any = value.get("texts")
    cpus: Any = value.get("cpus")
    valid = isinstance(texts, dict) and all(isinstance(each, str) for each in texts.values())
    if not valid or not isinstance(cpus, int):
        raise ValueError(f"{state_dir / _NAME}: damaged")
    return KeptConfig(texts, cpus) if value.get("file") == str(file.absolute()) else None


def keep_config(state_dir: Path, file: Path, kept: KeptConfig) -> None:
    """Keep *kept* as that of the configuration file *file*.

    :raises OSError: it cannot be written.
    """
    value = {"version": _VERSION, "file": str(file.absolute()), **kept._asdict()}
    write_json(state_dir / _NAME, value)


def forget_config(state_dir: Path) -> None:
    """Remove what is kept. Where that fails it stays: it is used only if the file is refused."""
    with contextlib.suppress(OSError):
        (state_dir / _NAME).unlink()
