# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""The record of the trial in the background of a host, in a directory that its process locks.

``sweetpoint trial --background`` writes it. Other commands read it, and so does an agent that
begins trials by itself.
"""

from dataclasses import asdict, dataclass
import hashlib
import json
from pathlib import Path

from controller.host.state_dir import read_file, write_json

__all__ = (
    "MOST_LABEL",
    "Record",
    "RecordError",
    "digest_of",
    "read_record",
    "record_file",
    "trial_directory",
    "write_record",
)

MOST_LABEL = 64
_VERSION = 1
_MOST_BYTES = 1 << 16


class RecordError(ValueError):
    """There is no record that can be read; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The pairs of the trial are in ``file``; ``ended``: why it ended early, ``None``: not yet.

    ``label`` is equal on all nodes of a pool on which one command began trials.
    ``configuration`` is a digest of that of the agent, empty before it was known. ``hurt`` is the
    arm that hurt a service, so that the trial ended.
    """

    file: str
    label: str = ""
    configuration: str = ""
    ended: str | None = None
    hurt: str = ""


def trial_directory(data_dir: Path) -> Path:
    """Return the directory of the record, which the trial's process locks while it runs."""
    return data_dir / "trials" / "background"


def record_file(data_dir: Path) -> Path:
    """Return the file of the record."""
    return trial_directory(data_dir) / "trial.json"


def read_record(data_dir: Path) -> Record | None:
    """Return the record of the last trial; ``None``: there was none.

    :raises RecordError: it is damaged, or of another version.
    :raises OSError: it cannot be read.
    """
    path = record_file(data_dir)
    try:
        fields = json.loads(read_file(path, at_most=_MOST_BYTES))
        version = fields.pop("version")
        record = Record(**fields) if version == _VERSION else None
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise RecordError(f"{path}: damaged") from None
    if record is None:
        raise RecordError(f"{path}: version {ascii(version)[:40]} is not known")
    return record


def write_record(data_dir: Path, record: Record) -> None:
    """Put *record* in place of the one before.

    :raises OSError: it cannot be written.
    """
    write_json(record_file(data_dir), {"version": _VERSION, **asdict(record)})


def digest_of(*values: object) -> str:
    """Return a short text that differs where one of the *values* does."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]
