# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The keys ``state_dir`` and ``data_dir`` of the configuration alone.

The guardian needs nothing else of the configuration, and the check of the whole file, which
follows in the agent, imports ten times as much.
"""

from pathlib import Path

from controller.config.yaml_document import read_document

__all__ = (
    "DEFAULT_DATA_DIR",
    "DEFAULT_STATE_DIR",
    "parse_directory",
    "read_data_dir",
    "read_state_dir",
)

DEFAULT_STATE_DIR = "/run/sweetpoint"
DEFAULT_DATA_DIR = "/var/lib/sweetpoint"


def read_state_dir(path: Path) -> Path | None:
    """Return the state directory that the configuration *path* names, ``None`` if it is invalid.

    :raises ConfigError: the file is not YAML, see ``read_document``.
    :raises OSError: see ``read_document``.
    """
    return _read(path, "state_dir", DEFAULT_STATE_DIR)


def read_data_dir(path: Path) -> Path | None:
    """Return the data directory that the configuration *path* names, as ``read_state_dir``."""
    return _read(path, "data_dir", DEFAULT_DATA_DIR)


def _read(path: Path, key: str, usual: str) -> Path | None:
    data = read_document(path).data
    text = data.get(key, usual) if isinstance(data, dict) else None
    return parse_directory(text) if isinstance(text, str) else None


def parse_directory(text: str) -> Path | None:
    """Return *text* as a path; ``None`` if it is not an absolute path without ``..``."""
    path = Path(text)
    valid = path.is_absolute() and ".." not in path.parts and "\0" not in text
    return path if valid else None
