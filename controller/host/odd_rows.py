# Copyright The sweetpoint authors
# SPDX-License-Identifier: Apache-2.0
"""Reports of rows of kernel files that do not have the documented form, and are left out."""

import logging

from controller.host.names import printable

__all__ = ("report_odd",)

_log = logging.getLogger(__name__)

_MAX_CHARACTERS = 200
_reported: set[str] = set()


def report_odd(source: str, row: object) -> None:
    """Log *row*, which the caller leaves out, if it is the first one of *source*.

    Once in the life of the process, because files are read in every tick.

    :param source: the kind of file, without the name of a cgroup or device.
    """
    if source not in _reported:
        _reported.add(source)
        text = printable(str(row))[:_MAX_CHARACTERS]
        _log.warning("%s: left out, because its form is not known: %s", source, text)
