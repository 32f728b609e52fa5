# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""How many of the RMIDs are taken by groups that are not monitoring groups of ours.

The kernel tells how many there are (``info/L3_MON/num_rmids``) and not how many are free.
"""

from collections.abc import Iterator
from pathlib import Path

from actuators.resctrlfs import PREFIX

__all__ = ("count_others",)

_MONITORS = "mon_groups"
_FIXED = frozenset({"info", "mon_data", _MONITORS})


def count_others(mount: Path) -> int:
    """Return the number of groups, the root group and control groups of ours included.

    :raises OSError: nothing is mounted there any more.
    """
    (mount / "tasks").stat()
    controls = [e.name for e in mount.iterdir() if e.is_dir() and e.name not in _FIXED]
    inner = [name for control in ("", *controls) for name in _monitors(mount / control)]
    return 1 + len(controls) + sum(not name.startswith(PREFIX) for name in inner)


def _monitors(group: Path) -> Iterator[str]:
    try:
        yield from (entry.name for entry in (group / _MONITORS).iterdir())
    except FileNotFoundError:  # the group was removed just now
        return
