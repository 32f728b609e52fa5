# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Putting tasks into a monitoring group of ours, and back.

Nobody needs a journal for them: they come from the control group that the monitoring group is
in, keep its limits all the time, and fall back to its own monitor when the group is removed.
"""

from collections.abc import Iterable
import errno

from actuators.base import RefusedError
from actuators.resctrlfs import Group
from actuators.tasks import is_kernel_thread
from controller.model import Target

__all__ = ("put",)


def put(group: Target, tids: Iterable[int]) -> frozenset[int]:
    """Put *tids* into *group*, one by one, and return those that were alive and taken.

    :raises GoneError: the group was removed.
    :raises RefusedError: the kernel does not take one of them.
    """
    taken: set[int] = set()
    with Group(group) as opened:
        for tid in tids:
            if tid == 1 or is_kernel_thread(tid):  # the kernel would take both
                continue
            try:
                opened.write("tasks", str(tid))
            except RefusedError as error:
                if error.errno != errno.ESRCH:
                    raise
            else:
                taken.add(tid)
    return frozenset(taken)
