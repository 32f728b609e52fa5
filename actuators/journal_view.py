# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What a journal holds, read without a change of it: it may belong to an agent that runs."""

import os
from pathlib import Path
from typing import NamedTuple

from actuators.record import Record, checked_fields, parse
from controller.host.facts import boot_id
from controller.host.state_dir import open_directory, read_file

__all__ = ("JournalView", "view_journal")


class JournalView(NamedTuple):
    """``records`` are the held knobs, with the time of the last write (ns since 1970).

    ``unread`` are the files of knobs that this version cannot evaluate.
    """

    records: tuple[tuple[Record, int], ...] = ()
    unread: tuple[Path, ...] = ()


def view_journal(directory: Path) -> JournalView:
    """Return what the journal in *directory* holds; nothing if there is none.

    Records of another boot are left out, because a reboot resets the knobs.

    :raises OSError: the directory cannot be read, or does not belong to root alone.
    """
    try:
        os.close(open_directory(directory))
        paths = sorted(directory.iterdir())
    except FileNotFoundError:
        return JournalView()
    boot = boot_id()
    records, unread = [], []
    for path in paths:
        if path.suffix == ".bad":
            unread.append(path)
        if path.suffix != ".json":
            continue
        try:
            written_ns = path.stat().st_mtime_ns
            fields = checked_fields(read_file(path))
            if fields["boot_id"] != boot:
                continue
            record = parse(fields, path.stem)
        except FileNotFoundError:
            continue  # restored meanwhile
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            record = None
        if record is None:
            unread.append(path)
        else:
            records.append((record, written_ns))
    return JournalView(tuple(records), tuple(unread))
