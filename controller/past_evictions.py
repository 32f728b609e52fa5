# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""What is kept of evictions across restarts: an agent that crashes again and again has one budget.

The times are CLOCK_MONOTONIC, which goes on as long as the kernel runs, whoever sets the date;
the kernel's boot id is beside them, and with another one they mean nothing.
"""

import json
import logging
from pathlib import Path

from controller.control.eviction import EvictionPast
from controller.host import boot_id
from controller.statefile import write_json
from controller.units import NS_PER_SEC

__all__ = ("read_past", "write_past")

_log = logging.getLogger(__name__)

_NAME = "evictions.json"
# More than sixty evictions in an hour nobody can ask for.
_MOST = 60
_LARGEST_BYTES = 4096
# A pod's hour to stop, the time to see the effect, a day's cool-down; with room to spare.
_LONGEST_NS = 48 * 3600 * NS_PER_SEC
_HOUR_NS = 3600 * NS_PER_SEC


def read_past(state_dir: Path, now_ns: int) -> EvictionPast:
    """Return what was written last since this kernel started.

    If that cannot be read, all budgets may have been used up: nobody is evicted for an hour.
    """
    path = state_dir / _NAME
    try:
        with path.open("rb") as file:
            return _parse(file.read(_LARGEST_BYTES + 1), now_ns)
    except FileNotFoundError:
        return EvictionPast()
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        _log.error("%s is damaged (%s): nobody is evicted for an hour", path, error)
        return EvictionPast(not_before_ns=now_ns + _HOUR_NS)


def write_past(state_dir: Path, past: EvictionPast) -> None:
    """Write *past* down; call it before what it tells of is done.

    :raises OSError: it cannot be written; then nobody must be evicted either.
    """
    write_json(state_dir / _NAME, {"boot_id": boot_id(), **past._asdict()})


def _parse(data: bytes, now_ns: int) -> EvictionPast:
    if len(data) > _LARGEST_BYTES:
        raise ValueError("too large")
    fields = json.loads(data)
    if fields["boot_id"] != boot_id():
        return EvictionPast()
    asked, not_before = fields["asked_ns"], fields["not_before_ns"]
    if not isinstance(asked, list) or any(type(each) is not int for each in (*asked, not_before)):
        raise TypeError("not times")
    if asked != sorted(asked) or len(asked) > _MOST:
        raise ValueError("no such evictions")
    if not all(0 <= each <= now_ns for each in asked) or not_before > now_ns + _LONGEST_NS:
        raise ValueError("a time that is still to come")
    return EvictionPast(tuple(asked), not_before)
